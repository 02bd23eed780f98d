//! `make soak`: random clients, cancels, disconnects, slow readers and faults against a real engine for a long
//! time. It prints a table while it runs, and fails unless memory stays flat, every request ends, equal requests
//! get equal replies, and nothing is held at the end.
//!
//! `SOAK_SECONDS` is how long (1800), `SOAK_MODEL` a model file (a small generated one if left out).

use lavalane_actors::request::{EndTokens, RequestEvent, StopRules, ValidRequest};
use lavalane_actors::statistics::Statistics;
use lavalane_actors::status::{Health, SlotState};
use lavalane_actors::testing::{Fault, FaultInjectingExecutor, FaultScript, Injection, When};
use lavalane_actors::{Engine, EngineHandle, EngineSettings, RequestStream};
use lavalane_integration_tests::text::tokenizer;
use lavalane_runtime::batch::LaneFaultCause;
use lavalane_runtime::engine::{EngineOptions, VulkanExecutor};
use lavalane_runtime::ids::{LaneId, TokenId};
use lavalane_runtime::model::Model;
use lavalane_runtime::quant::TensorType;
use lavalane_runtime::sampling::{SamplingOptions, SamplingSettings};
use lavalane_runtime::synth::{SynthSettings, write_synth};
use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LANES: usize = 4;
const CLIENTS: u64 = 12;
const CONTEXT: usize = 512;
/// Rows of the table.
const ROWS: u32 = 30;
/// How much memory may grow from the second quarter of the time to the last: what an allocator keeps.
const GROWTH_MAX_BYTES: u64 = 24 << 20;

/// A small random number generator: what clients and faults do is the same in every soak of one length, but for
/// their timing.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// What a client asked, as far as it decides the reply.
type Question = (u64, u64, u64);
/// The first reply to each question.
type Replies = Mutex<HashMap<Question, Vec<TokenId>>>;

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    ReadsAll,
    CancelsAfter(u64),
    LeavesAfter(u64),
    NeverReads,
}

/// What went wrong, to be told at the end.
type Complaints = Mutex<Vec<String>>;

struct Soak {
    engine: EngineHandle,
    vocabulary: u64,
    until: Instant,
    replies: Replies,
    complaints: Complaints,
}

fn main() -> ExitCode {
    let seconds = std::env::var("SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1800);
    match soak(Duration::from_secs(seconds)) {
        Ok(complaints) if complaints.is_empty() => {
            println!("flat, ended and free: the soak of {seconds} s has passed");
            ExitCode::SUCCESS
        }
        Ok(complaints) => {
            complaints.iter().for_each(|complaint| eprintln!("error: {complaint}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Soaks for a time; gives what went wrong.
fn soak(time: Duration) -> Result<Vec<String>, Box<dyn Error>> {
    // Panics are ordered by the hundred here; each is a fault that is counted.
    std::panic::set_hook(Box::new(|_| {}));
    let script = FaultScript::new().without_records();
    let engine = start(&script)?;
    let vocabulary = engine.limits().vocabulary as u64;
    let soak = Arc::new(Soak {
        engine,
        vocabulary,
        until: Instant::now() + time,
        replies: Replies::default(),
        complaints: Complaints::default(),
    });
    let mut threads = Vec::new();
    for seed in 0..CLIENTS {
        let soak = soak.clone();
        threads.push(std::thread::spawn(move || soak.be_a_client(Random(seed))));
    }
    let faults = soak.clone();
    threads.push(std::thread::spawn(move || faults.order_faults(&script, Random(99))));
    soak.watch(time);
    for thread in threads {
        thread.join().map_err(|_| "a client's thread panicked")?;
    }
    futures_executor::block_on(soak.engine.drain());
    soak.check_end();
    futures_executor::block_on(soak.engine.shutdown(Duration::from_secs(30)));
    Ok(std::mem::take(&mut *soak.complaints.lock().unwrap_or_else(|poisoned| poisoned.into_inner())))
}

fn start(script: &FaultScript) -> Result<EngineHandle, Box<dyn Error>> {
    let (path, is_ours) = match std::env::var_os("SOAK_MODEL") {
        Some(path) => (PathBuf::from(path), false),
        None => (std::env::temp_dir().join(format!("lavalane-soak-{}.gguf", std::process::id())), true),
    };
    if is_ours {
        write_small_model(&path)?;
    }
    let model = Model::open(&path);
    if is_ours {
        // The file stays mapped; its name is not needed any more.
        std::fs::remove_file(&path)?;
    }
    let model = Arc::new(model?);
    let tokenizer = tokenizer(&model);
    println!("{} with {LANES} lanes and {CLIENTS} clients", model.description().name);
    let options = EngineOptions { lanes: LANES, context_tokens: Some(CONTEXT), ..Default::default() };
    let executor = FaultInjectingExecutor::new(VulkanExecutor::new(model, &options)?, script.clone());
    let settings = EngineSettings {
        lanes: LANES,
        queue_capacity: 8,
        events_buffered_max: 16,
        // Losing the device again and again is what is wanted here.
        recoveries_max: u32::MAX,
        ..Default::default()
    };
    Ok(Engine::start(Box::new(executor), Arc::new(tokenizer), settings)?)
}

fn write_small_model(path: &Path) -> Result<(), Box<dyn Error>> {
    let settings = SynthSettings {
        architecture: "llama".to_owned(),
        layers: 2,
        hidden: 64,
        heads: 2,
        kv_heads: 1,
        head_dim: 32,
        feed_forward: 128,
        vocabulary: 1024,
        context: CONTEXT,
        tensor_type: TensorType::Q4_0,
        seed: 7,
    };
    write_synth(&settings, path)?;
    Ok(())
}

impl Soak {
    fn complain(&self, complaint: String) {
        let mut complaints = self.complaints.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if complaints.len() < 20 {
            complaints.push(complaint);
        }
    }

    fn be_a_client(&self, mut random: Random) {
        while Instant::now() < self.until {
            let question = (random.below(6), 1 + random.below(8) * 25, 1 + random.below(5) * 8);
            let manner = match random.below(10) {
                0 => Manner::CancelsAfter(random.below(9)),
                1 | 2 => Manner::LeavesAfter(random.below(9)),
                3 => Manner::NeverReads,
                _ => Manner::ReadsAll,
            };
            match futures_executor::block_on(self.engine.submit(self.request(question, &mut random))) {
                Ok(stream) => futures_executor::block_on(self.behave(stream, question, manner)),
                // Twelve clients are more than the engine takes at times, and that is wanted.
                Err(_) => std::thread::sleep(Duration::from_millis(random.below(30))),
            }
        }
    }

    /// The request that a question stands for. Prompts of one seed begin alike.
    fn request(&self, (seed, length, count): Question, random: &mut Random) -> ValidRequest {
        let token = |at: u64| TokenId((1 + (at * 7919 + seed * 104_729) % (self.vocabulary - 1)) as u32);
        let options = SamplingOptions { temperature: 0.9, seed: Some(seed), ..Default::default() };
        let sampling = SamplingSettings::new(options, 0).expect("the options are in range");
        ValidRequest {
            stop: StopRules { end_tokens: EndTokens::Ignore, ..StopRules::default() },
            priority: random.below(3) as i32,
            ..ValidRequest::new((0..length).map(token).collect(), sampling, count as u32)
        }
    }

    async fn behave(&self, mut stream: RequestStream, question: Question, manner: Manner) {
        if manner == Manner::NeverReads {
            std::thread::sleep(Duration::from_millis(50));
            return;
        }
        let mut tokens = Vec::new();
        for heard in 0.. {
            match manner {
                Manner::CancelsAfter(events) if heard == events => stream.cancel(),
                Manner::LeavesAfter(events) if heard == events => return,
                _ => {}
            }
            match stream.next().await {
                Some(RequestEvent::Token(token)) => tokens.push(token.sampled.token),
                Some(RequestEvent::Finished(_)) => self.compare(question, &tokens),
                Some(_) => {}
                None => return,
            }
        }
    }

    /// Equal questions have equal replies, whatever else went on.
    fn compare(&self, question: Question, tokens: &[TokenId]) {
        let mut replies = self.replies.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let first = replies.entry(question).or_insert_with(|| tokens.to_vec());
        if first != tokens {
            self.complain(format!("{question:?} was answered with {first:?}, and later with {tokens:?}"));
        }
    }

    fn order_faults(&self, script: &FaultScript, mut random: Random) {
        while Instant::now() < self.until {
            std::thread::sleep(Duration::from_millis(200 + random.below(800)));
            let place = random.below(LANES as u64) as usize;
            match random.below(20) {
                0 => script.now(Fault::DeviceLost(When::Before)),
                1 => script.now(Fault::DeviceLost(When::During(place))),
                2 => script.now(Fault::Panic(When::After)),
                3 => self.engine.inject(Injection::ReadersVanish),
                4..=6 => self.engine.inject(Injection::LanePanic(LaneId(place as u32))),
                7..=9 => script.now(Fault::Lane(place, LaneFaultCause::OutOfMemory)),
                10 | 11 => script.now(Fault::Lane(place, LaneFaultCause::LogitsNotFinite)),
                12 => script.now(Fault::WrongLength(place)),
                13 => script.now(Fault::SessionKept(place)),
                _ => script.now(Fault::Submission(place)),
            }
        }
    }

    /// Prints the table, and looks at the memory's growth.
    fn watch(&self, time: Duration) {
        println!(
            "{:>7} {:>8} {:>6} {:>6} {:>8} {:>8} {:>9} {:>7} {:>8} {:>7} {:>7}",
            "seconds",
            "RSS MB",
            "pages",
            "cached",
            "finished",
            "failed",
            "cancelled",
            "refused",
            "partial",
            "devices",
            "waiting"
        );
        let started = Instant::now();
        let mut memory = Vec::new();
        for row in 1..=ROWS {
            std::thread::sleep((started + time / ROWS * row).saturating_duration_since(Instant::now()));
            let statistics = self.engine.statistics();
            memory.push(resident_bytes());
            print_row(started.elapsed(), resident_bytes(), &statistics);
        }
        let greatest = |rows: std::ops::Range<usize>| memory[rows].iter().copied().max().unwrap_or(0);
        let rows = memory.len();
        let (early, late) = (greatest(rows / 4..rows / 2), greatest(rows * 3 / 4..rows));
        if late > early + GROWTH_MAX_BYTES + early / 20 {
            self.complain(format!("memory grew from {early} to {late} bytes"));
        }
    }

    /// Nothing is held, and every request that was taken has been counted once.
    fn check_end(&self) {
        let statistics = self.engine.statistics();
        let slots = self.engine.slots();
        if !slots.iter().all(|slot| slot.state == SlotState::Idle && slot.kv_pages == 0) {
            self.complain(format!("a lane is not free: {slots:?}"));
        }
        if statistics.kv_pages_used + statistics.requests_running + statistics.requests_waiting > 0 {
            self.complain(format!("something is held: {statistics:?}"));
        }
        if self.engine.health() != Health::Draining {
            self.complain(format!("the engine is {}", self.engine.health()));
        }
        if statistics.requests_length == 0 || statistics.requests_cancelled == 0 || statistics.recoveries == 0
        {
            self.complain(format!("too little happened to say anything: {statistics:?}"));
        }
    }
}

fn print_row(time: Duration, memory: u64, statistics: &Statistics) {
    println!(
        "{:7} {:8.1} {:6} {:6} {:8} {:8} {:9} {:7} {:8} {:7} {:7}",
        time.as_secs(),
        memory as f64 / 1e6,
        statistics.kv_pages_used,
        statistics.kv_pages_cached,
        statistics.requests_length + statistics.requests_stopped,
        statistics.requests_failed,
        statistics.requests_cancelled,
        statistics.requests_refused,
        statistics.partial_batches,
        statistics.recoveries,
        statistics.requests_waiting,
    );
}

/// The process's resident memory; 0 where the system does not tell.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    // The page size of every system that has this file and runs this program's releases.
    pages * 4096
}
