//! A model-based test of the whole engine: random submissions, cancels, disconnects, slow readers, faults of
//! lanes, submissions, device, executor, page transfers and lanes' code, in any order and at any step, against a small model of
//! what each request may hear.
//!
//! Whatever happens: every request ends exactly once, in a way that what was done to it allows; its tokens are
//! the model's, whole or a beginning of them; a lane advances exactly when it was said to have run; and at the
//! end every lane, page and permit is free. `LAVALANE_LONG_TESTS=1` runs 10,000 cases.

mod support;

use futures_util::FutureExt;
use lavalane_actors::request::{Failure, Refusal, RequestEvent, ValidRequest};
use lavalane_actors::status::Health;
use lavalane_actors::testing::{
    Fault, FaultInjectingExecutor, FaultScript, Gate, Injection, ScriptedExecutor, ScriptedTokens,
    TransferFault, When, scripted_limits,
};
use lavalane_actors::{Engine, EngineHandle, EngineSettings, RequestStream, SnapshotSettings};
use lavalane_runtime::batch::LaneFaultCause;
use lavalane_runtime::ids::{LaneId, TokenId};
use proptest::prelude::*;
use proptest::test_runner::Config;
use std::sync::Arc;
use std::time::Duration;
use support::files::{Folder, TestFiles};
use support::*;

/// Something that the world does to the engine. Requests are named by their place among those submitted,
/// modulo their number.
#[derive(Clone, Debug)]
enum Operation {
    Submit {
        seed: u32,
        length: usize,
        count: u32,
        priority: i32,
        patience: Patience,
    },
    /// Its client asks for its end and goes on reading.
    Cancel(usize),
    /// Its client is gone.
    Disconnect(usize),
    /// Its client reads what there is.
    Read(usize),
    /// The next run goes wrong.
    Fault(Fault),
    /// The next pages that are moved to or from the disk are not.
    TransferFault(TransferFault),
    /// A lane panics.
    LanePanic(u32),
    /// All clients whose requests have a lane are gone.
    ReadersVanish,
    /// So many runs go on.
    Run(u64),
}

/// How long a request may wait for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    Endless,
    /// Not at all: unless there is a lane at once, it is refused.
    None,
}

fn any_when() -> impl Strategy<Value = When> {
    prop_oneof![Just(When::Before), (0_usize..3).prop_map(When::During), Just(When::After)]
}

fn any_fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        (0_usize..3).prop_map(|lane| Fault::Lane(lane, LaneFaultCause::OutOfMemory)),
        (0_usize..3).prop_map(|lane| Fault::Lane(lane, LaneFaultCause::LogitsNotFinite)),
        (0_usize..3).prop_map(Fault::Submission),
        any_when().prop_map(Fault::DeviceLost),
        any_when().prop_map(Fault::Panic),
        (0_usize..3).prop_map(Fault::WrongLength),
        (0_usize..3).prop_map(Fault::SessionKept),
        (0_usize..3).prop_map(Fault::LeftOut),
    ]
}

fn any_transfer_fault() -> impl Strategy<Value = TransferFault> {
    prop_oneof![Just(TransferFault::Refused), Just(TransferFault::DeviceLost), Just(TransferFault::Panic)]
}

fn any_operation() -> impl Strategy<Value = Operation> {
    let patience = prop_oneof![9 => Just(Patience::Endless), 1 => Just(Patience::None)];
    // Few seeds, so that prompts begin alike and are identical often.
    let submit = (0_u32..4, 1_usize..70, 1_u32..16, -2_i32..3, patience);
    let submit = submit.prop_map(|(seed, length, count, priority, patience)| Operation::Submit {
        seed,
        length,
        count,
        priority,
        patience,
    });
    prop_oneof![
        6 => submit,
        1 => (0_usize..20).prop_map(Operation::Cancel),
        1 => (0_usize..20).prop_map(Operation::Disconnect),
        3 => (0_usize..20).prop_map(Operation::Read),
        2 => any_fault().prop_map(Operation::Fault),
        1 => any_transfer_fault().prop_map(Operation::TransferFault),
        1 => (0_u32..3).prop_map(Operation::LanePanic),
        1 => Just(Operation::ReadersVanish),
        6 => (1_u64..8).prop_map(Operation::Run),
    ]
}

/// What the model knows of one request.
#[derive(Debug)]
struct Client {
    question: ValidRequest,
    /// `None` once its client is gone.
    stream: Option<RequestStream>,
    tokens: Vec<TokenId>,
    end: Option<RequestEvent>,
    may_be_cancelled: bool,
}

impl Client {
    fn hear(&mut self, event: RequestEvent) {
        assert!(self.end.is_none(), "{event:?} after the end");
        match event {
            RequestEvent::Started { .. } => assert!(self.tokens.is_empty(), "it starts once, and first"),
            RequestEvent::Token(token) => self.tokens.push(token.sampled.token),
            end => self.end = Some(end),
        }
    }

    /// Takes in what waits, without waiting.
    fn read(&mut self) {
        while let Some(stream) = &mut self.stream {
            match stream.next().now_or_never() {
                Some(Some(event)) => self.hear(event),
                Some(None) => return assert!(self.end.is_some(), "a stream ends with a final event"),
                None => return,
            }
        }
    }

    async fn read_to_the_end(&mut self) {
        while let Some(stream) = &mut self.stream {
            match stream.next().await {
                Some(event) => self.hear(event),
                None => return assert!(self.end.is_some(), "a stream ends with a final event"),
            }
        }
    }

    /// Whether what was heard is what the model says may be heard.
    fn check(&self) {
        let whole = expected(&self.question);
        assert!(whole.starts_with(&self.tokens), "{:?} is no beginning of {whole:?}", self.tokens);
        if self.stream.is_none() {
            return;
        }
        match self.end.as_ref().expect("every request ends") {
            RequestEvent::Finished(finished) => {
                assert_eq!(self.tokens, whole);
                assert_eq!(finished.usage.completion_tokens, whole.len());
            }
            RequestEvent::Cancelled(_) => assert!(self.may_be_cancelled, "nobody cancelled"),
            RequestEvent::Failed(Failure::Lane(_)) => {}
            RequestEvent::Failed(Failure::SlowReader { .. }) => assert!(self.tokens.len() < whole.len()),
            RequestEvent::Failed(Failure::NotRun { .. }) => {}
            RequestEvent::Refused(Refusal::QueueTimeout { .. }) => {
                assert_eq!(self.question.queue_wait_max, Some(Duration::ZERO));
                assert!(self.tokens.is_empty());
            }
            other => panic!("{other:?}"),
        }
    }
}

struct World {
    engine: EngineHandle,
    gate: Gate,
    script: FaultScript,
    clients: Vec<Client>,
    /// Where the engine keeps snapshots.
    folder: Option<Folder>,
}

/// Whether the engine keeps snapshots: prefixes are then found again though the pool has forgotten them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disk {
    Used,
    Unused,
}

impl World {
    fn new(pages: usize, disk: Disk) -> Self {
        let folder = (disk == Disk::Used).then(Folder::new);
        let snapshots = folder.as_ref().map(|folder| SnapshotSettings {
            // One page of the scripted executor.
            transfer_bytes_max: 64,
            // A few sequences, so that some are evicted.
            ..SnapshotSettings::new(&folder.0, 3000)
        });
        let settings = EngineSettings {
            lanes: 3,
            queue_capacity: 6,
            events_buffered_max: 12,
            // Faults come in any number; giving up on the device has a test of its own.
            recoveries_max: u32::MAX,
            snapshots,
            ..settings()
        };
        let script = FaultScript::new();
        let mut limits = scripted_limits();
        limits.pages = pages;
        let gate = Gate::shut();
        let executor = ScriptedExecutor::new(limits).with_gate(gate.clone());
        let executor = Box::new(FaultInjectingExecutor::new(executor, script.clone()));
        let (tokens, files) = (Arc::new(ScriptedTokens), Arc::new(TestFiles::open()));
        let engine = Engine::start_with_files(executor, tokens, settings, files).expect("the engine starts");
        Self { engine, gate, script, clients: Vec::new(), folder }
    }

    async fn apply(&mut self, operation: Operation) {
        let index = |place: usize, clients: &[Client]| place % clients.len().max(1);
        match operation {
            Operation::Submit { seed, length, count, priority, patience } => {
                let mut question = drawn(prompt(seed, length), count, u64::from(seed));
                question.priority = priority;
                question.queue_wait_max = (patience == Patience::None).then_some(Duration::ZERO);
                match self.engine.submit(question.clone()).await {
                    Ok(stream) => self.clients.push(Client {
                        question,
                        stream: Some(stream),
                        tokens: Vec::new(),
                        end: None,
                        may_be_cancelled: false,
                    }),
                    Err(Refusal::QueueFull { capacity: 6, .. }) => {}
                    Err(refusal) => panic!("{refusal:?}"),
                }
            }
            Operation::Cancel(place) => {
                let place = index(place, &self.clients);
                if let Some(client) = self.clients.get_mut(place) {
                    client.may_be_cancelled = true;
                    client.stream.iter().for_each(RequestStream::cancel);
                }
            }
            Operation::Disconnect(place) => {
                let place = index(place, &self.clients);
                if let Some(client) = self.clients.get_mut(place) {
                    client.read();
                    client.stream = None;
                }
            }
            Operation::Read(place) => {
                let place = index(place, &self.clients);
                self.clients.get_mut(place).into_iter().for_each(Client::read);
            }
            Operation::Fault(fault) => self.script.now(fault),
            Operation::TransferFault(fault) => drop(self.script.clone().fail_transfers(1, fault)),
            Operation::LanePanic(lane) => self.engine.inject(Injection::LanePanic(LaneId(lane))),
            Operation::ReadersVanish => {
                self.clients.iter_mut().for_each(|client| client.may_be_cancelled = true);
                self.engine.inject(Injection::ReadersVanish);
            }
            Operation::Run(runs) => {
                self.gate.allow(runs);
                tokio::task::yield_now().await;
            }
        }
        assert!(matches!(self.engine.health(), Health::Ok | Health::Recovering { .. }));
    }

    async fn end(mut self) {
        self.gate.open();
        for client in &mut self.clients {
            client.read_to_the_end().await;
            client.check();
        }
        self.engine.drain().await;
        // What goes to the disk holds its pages until it has been read out.
        until(|| self.engine.statistics().kv_pages_used == 0).await;
        check_only_those_that_ran_advanced(&self.script.runs());
        let statistics = self.engine.statistics();
        let ended = statistics.requests_stopped
            + statistics.requests_length
            + statistics.requests_cancelled
            + statistics.requests_failed;
        let refused_in_the_queue =
            self.clients.iter().filter(|client| matches!(client.end, Some(RequestEvent::Refused(_)))).count();
        let unheard = self.clients.iter().filter(|client| client.stream.is_none()).count();
        let counted = ended as usize + refused_in_the_queue;
        // Who is gone may have been refused in the queue unheard.
        assert!((self.clients.len() - unheard..=self.clients.len()).contains(&counted), "{statistics:?}");
        finish(&self.engine).await;
        drop(self.folder);
    }
}

fn check(operations: Vec<Operation>, pages: usize, disk: Disk) {
    block_on(async {
        let mut world = World::new(pages, disk);
        for operation in operations {
            world.apply(operation).await;
        }
        world.end().await;
    });
}

fn cases() -> u32 {
    if std::env::var_os("LAVALANE_LONG_TESTS").is_some_and(|value| value == "1") { 10_000 } else { 300 }
}

proptest! {
    #![proptest_config(Config { cases: cases(), max_shrink_iters: 2000, ..Config::default() })]

    #[test]
    fn whatever_happens_every_request_ends_once_with_the_right_tokens_and_nothing_is_lost(
        operations in prop::collection::vec(any_operation(), 1..60),
        pages in 6_usize..40,
        disk in prop_oneof![Just(Disk::Used), Just(Disk::Unused)],
    ) {
        check(operations, pages, disk);
    }
}
