//! The part of `lavalane bench` that measures the engine around the executor: the scheduler's own cost, and who
//! waits for whom.

use super::{BenchArguments, ready};
use crate::cli::error::CommandError;
use lavalane_actors::bench::crowding::{Gaps, Starvation, Verdict, crowd, start, starvation};
use lavalane_actors::bench::scheduling_cost;
use lavalane_actors::settings::{PrefillPacing, SLICE_ROWS_MIN};
use lavalane_runtime::engine::EngineOptions;
use lavalane_runtime::model::Model;
use std::sync::Arc;
use std::time::Duration;

/// Lanes of the crowd: 32 short requests and 2 long ones.
const LANES: usize = 34;
/// Tokens of each of the crowd's long prompts, at the most.
const CROWD_PROMPT: usize = 2000;
/// Tokens that the decoding client has room for beside its prompt.
const DECODED: usize = 64;

/// Prints the figures.
///
/// # Errors
/// The device cannot be used, or a request fails.
pub(super) fn print(arguments: &BenchArguments, model: Arc<Model>) -> Result<(), CommandError> {
    println!("the scheduler's own cost, with an executor that does nothing:");
    for lanes in [1, 8, 32] {
        let cost = scheduling_cost(lanes, 2000)?;
        println!(
            "  {lanes:2} lanes {:8.1} us between two batches (at most {} us), {:8.1} us to the executor and back",
            cost.scheduling.as_secs_f64() * 1e6,
            20 + 2 * lanes,
            cost.handing_over.as_secs_f64() * 1e6,
        );
    }
    let context = model.description().context;
    let prompt = arguments.long_prompt.min(context.saturating_sub(DECODED));
    if prompt == 0 {
        return Ok(());
    }
    let options = EngineOptions {
        choice: arguments.device.choice(),
        precision: arguments.device.precision(),
        kv_type: arguments.device.kv_type(),
        lanes: LANES,
        context_tokens: Some(context.min(prompt + DECODED)),
        ..EngineOptions::default()
    };
    let engine = start(Box::new(ready(&model, &options)?), LANES)?;
    let waits = starvation(&engine, prompt)?;
    println!("one lane decodes while a prompt of {prompt} tokens arrives:");
    print_gaps("alone", waits.alone);
    print_gaps("beside", waits.beside);
    if let PrefillPacing::Adaptive { lengthening_max_percent, .. } = engine.settings().prefill_pacing {
        print_verdict(&waits, lengthening_max_percent);
    }
    let crowded = crowd(&engine, prompt.min(CROWD_PROMPT))?;
    println!("32 short requests and 2 prompts of {} tokens at once:", prompt.min(CROWD_PROMPT));
    println!(
        "  nobody was passed over more than {} times in a row (bound {}); first tokens within {:.2} s, of the long ones {:.2} s",
        crowded.passed_over_max,
        crowded.bound,
        crowded.short_wait_max.as_secs_f64(),
        crowded.long_wait_max.as_secs_f64()
    );
    Ok(())
}

fn print_verdict(waits: &Starvation, lengthening_max_percent: u32) {
    let (slices, prompt_s) = (waits.slices, waits.prompt_time.as_secs_f64());
    println!(
        "  the prompt took {prompt_s:.1} s in {} slices beside a decode: the median of at most {} rows, {} at the floor of {SLICE_ROWS_MIN}",
        slices.count, slices.rows_median, slices.at_floor
    );
    let verdict = match waits.verdict(lengthening_max_percent) {
        Verdict::Within => "within the target".to_owned(),
        Verdict::AtFloor => format!("over the target, but slices are at the floor of {SLICE_ROWS_MIN} rows"),
        Verdict::Beyond => "OVER THE TARGET, and not for the floor's sake".to_owned(),
    };
    println!(
        "  the median gap is {:.0}% longer, target {lengthening_max_percent}%: {verdict}",
        waits.lengthened_percent()
    );
}

fn print_gaps(name: &str, gaps: Gaps) {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "  {name:7} {:5} gaps between tokens: median {:8.2} ms, 95% within {:8.2} ms, longest {:8.2} ms",
        gaps.count,
        ms(gaps.median),
        ms(gaps.most),
        ms(gaps.longest)
    );
}
