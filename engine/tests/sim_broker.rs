//! A seeded simulation of the state machine against a shadow model: random clients, workers of
//! both kinds, losses, returns, take-overs, late and duplicate messages, little room for output,
//! and a broker that is stopped for a while.
//!
//! After every step the broker's invariants are checked, every hand-out, result and acceptance is
//! compared with what the model predicts, and so are the slots of every worker.
//!
//! `EMQ_SIM_SEEDS` = number of seeds; `EMQ_SIM_SEED` = run this one alone.

#[path = "sim/actors.rs"]
mod actors;
#[path = "sim/model.rs"]
mod model;
#[path = "sim/parts.rs"]
mod parts;
#[path = "sim/world.rs"]
mod world;

use world::World;

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

#[test]
fn broker_does_what_the_model_predicts() {
    let seeds = match number("EMQ_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("EMQ_SIM_SEEDS").unwrap_or(1_000),
    };
    for seed in seeds {
        let run = std::panic::catch_unwind(|| World::new(seed).run(250));
        if let Err(panic) = run {
            eprintln!("failing seed: run it alone with EMQ_SIM_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
