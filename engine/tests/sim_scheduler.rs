//! A seeded simulation of the scheduler against a simple model: schedules come and go, the clock is
//! set, the connection ends and comes back, output is held up, the store goes away, the process
//! restarts in order or is killed.
//!
//! After every step the runs sent are exactly those the model predicts, and what is stored is what
//! the model would store. The model knows no heaps, no keys and no arithmetic on due times: it
//! walks from one due time to the next.
//!
//! `EMQ_SIM_SEEDS` = number of seeds; `EMQ_SIM_SEED` = run this one alone.

#[path = "sim_scheduler/model.rs"]
mod model;
#[path = "sim_scheduler/world.rs"]
mod world;

use world::World;

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

#[test]
fn scheduler_does_what_the_model_predicts() {
    let seeds = match number("EMQ_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("EMQ_SIM_SEEDS").unwrap_or(1_000),
    };
    let mut runs = 0;
    for seed in seeds {
        let run = std::panic::catch_unwind(|| World::new(seed).run(200));
        match run {
            Ok(sent) => runs += sent,
            Err(panic) => {
                eprintln!("failing seed: run it alone with EMQ_SIM_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(runs > 0, "nothing ran");
}
