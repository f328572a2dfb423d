//! Sets `cfg(loom)` for this package alone: the doorbell's source is compiled here once more, on
//! loom's atomics, without rebuilding every dependency under a global flag.

fn main() {
    println!("cargo::rustc-cfg=loom");
    println!("cargo::rustc-check-cfg=cfg(loom)");
}
