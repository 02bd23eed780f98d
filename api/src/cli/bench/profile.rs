//! The part of `lavalane bench` that tells where a step's time goes, kernel by kernel, and how far each is from what
//! this machine can do.

use super::BenchArguments;
use crate::cli::error::CommandError;
use lavalane_runtime::engine::WindowRunner;
use lavalane_runtime::engine::bench::stage_times;
use lavalane_runtime::engine::work::StepRows;
use lavalane_runtime::model::Model;
use lavalane_runtime::vulkan::roofline::Roofline;
use std::sync::Arc;

/// Rows of the steps that are looked at.
const ROWS: [usize; 3] = [1, 8, 128];

/// Prints the figures.
///
/// # Errors
/// The device cannot be used, or takes no timestamps.
pub(super) fn print(
    arguments: &BenchArguments,
    model: &Arc<Model>,
    roofline: &Roofline,
) -> Result<(), CommandError> {
    let device = &arguments.device;
    let (precision, kv_type) = (device.precision(), device.kv_type());
    let rows_max = ROWS[2].min(model.description().context);
    let mut runner =
        WindowRunner::new(model.clone(), device.choice(), precision, kv_type, rows_max, rows_max)?;
    for rows in ROWS.into_iter().filter(|&rows| rows <= rows_max) {
        let times = stage_times(&mut runner, rows, 0)?;
        let total: f64 = times.iter().map(|time| time.seconds).sum();
        println!("time per kernel, a step of {rows} rows: {:.2} ms on the device", total * 1e3);
        for time in times {
            let share = 100.0 * time.seconds / total;
            let (name, count, ms) = (time.name, time.count, time.seconds * 1e3);
            print!("  {name:30} {count:4} times {ms:9.3} ms {share:5.1}%");
            let work = StepRows { sequences: 1, rows, from: 0, kv_type }.work(model, name);
            if let Some(work) = work {
                print!(" {:9.2} MB {:10.2} M operations", work.bytes / 1e6, work.operations / 1e6);
                let least = roofline.seconds(work.bytes, work.operations);
                print!(" {:5.1}% of the roofline", 100.0 * least / time.seconds);
            }
            println!();
        }
    }
    Ok(())
}
