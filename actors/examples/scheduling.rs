//! Prints what the scheduler costs per iteration, with an executor that does nothing.
//!
//! `cargo run --release -p lavalane-actors --example scheduling`

use lavalane_actors::bench::scheduling_cost;

fn main() -> Result<(), lavalane_actors::StartError> {
    for lanes in [1, 8, 32] {
        let cost = scheduling_cost(lanes, 2000)?;
        println!(
            "{lanes:2} lanes: {:6.1} us between two batches, {:6.1} us to the executor and back ({} iterations)",
            cost.scheduling.as_secs_f64() * 1e6,
            cost.handing_over.as_secs_f64() * 1e6,
            cost.iterations
        );
    }
    Ok(())
}
