//! A seeded simulation of the state machine against a shadow model: random clients, workers of
//! both kinds and schedulers, losses, returns, take-overs, late and duplicate messages, little
//! room for output, time-outs, memory running out, other settings while it runs, a broker that is
//! stopped for a while, and its end in order or at once.
//!
//! After every step the broker's invariants are checked, every hand-out, result, acceptance,
//! refusal, schedule, ACK, DISCONNECT and KBYE is compared with what the model predicts, and so are
//! the slots of every worker, who is read, and the counters.
//!
//! `EMQ_SIM_SEEDS` = number of seeds; `EMQ_SIM_SEED` = run this one alone, and tell. Of a failing
//! seed the steps are left out that do not matter, and the rest is told.

#[path = "sim/actors.rs"]
mod actors;
#[path = "sim/checks.rs"]
mod checks;
#[path = "sim/clients.rs"]
mod clients;
#[path = "sim/model/mod.rs"]
mod model;
#[path = "sim/parts.rs"]
mod parts;
#[path = "sim/world.rs"]
mod world;

use std::collections::BTreeSet;
use world::{STEPS, World};

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

/// True if the seed fails without these steps.
fn fails(seed: u64, skipped: &BTreeSet<u64>) -> bool {
    std::panic::catch_unwind(|| World::new(seed, false).run(skipped)).is_err()
}

/// Steps without which the seed fails as well: longer pieces first, then shorter ones.
fn shorten(seed: u64) -> BTreeSet<u64> {
    // Told once, at the end, is enough.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut skipped = BTreeSet::new();
    let mut piece = STEPS as usize / 2;
    while piece > 0 {
        for from in (0..STEPS as usize).step_by(piece).rev() {
            let mut more = skipped.clone();
            more.extend(from as u64..(from + piece) as u64);
            if more.len() > skipped.len() && fails(seed, &more) {
                skipped = more;
            }
        }
        piece /= 2;
    }
    std::panic::set_hook(hook);
    skipped
}

#[test]
fn broker_does_what_the_model_predicts() {
    if let Some(seed) = number("EMQ_SIM_SEED") {
        return World::new(seed, true).run(&BTreeSet::new());
    }
    for seed in 0..number("EMQ_SIM_SEEDS").unwrap_or(1_000) {
        if fails(seed, &BTreeSet::new()) {
            let skipped = shorten(seed);
            eprintln!("failing seed, shortened; all of it: EMQ_SIM_SEED={seed}");
            World::new(seed, true).run(&skipped);
            panic!("seed {seed} fails, but not when told");
        }
    }
}
