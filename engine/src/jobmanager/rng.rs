//! Randomness of simulations: the same seed gives the same run.

/// SplitMix64.
#[derive(Debug, Clone)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(1))
    }

    /// 64 random bits.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Runs the seeds that `EMQ_SIM_SEED` or `EMQ_SIM_SEEDS` names, else `usual` of them; the one that
/// fails is named.
pub(super) fn for_each_seed(usual: u64, run: impl Fn(u64)) {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().expect("a number"))
    };
    let seeds = match number("EMQ_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("EMQ_SIM_SEEDS").unwrap_or(usual),
    };
    for seed in seeds {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        if let Err(panic) = result {
            eprintln!("failing seed: run it alone with EMQ_SIM_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
