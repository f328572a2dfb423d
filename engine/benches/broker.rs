//! Cost of the state machine over the whole life of a 120-byte job: REQUEST in, acceptance and
//! hand-out; REPLY in, result forwarded; READY in. The outbox throws everything away.

mod shapes;

use criterion::{Criterion, Throughput};
use shapes::{Rig, SHAPES};

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("job");
    group.throughput(Throughput::Elements(1));
    for shape in SHAPES {
        let mut rig = Rig::new(shape);
        rig.run(20_000);
        group.bench_function(shape.name, |bencher| bencher.iter(|| rig.run(1)));
    }
    group.finish();
    criterion.final_summary();
}
