//! A device that is lost under embedded sessions on the real model, in the middle of their replies: a new one is made,
//! every session's tokens run again, and what they go on to draw has the bits of a run without the loss.

use lavalane_integration_tests::models::{self, ModelFile};
use lavalane_integration_tests::sampling::telling_draws;
use lavalane_integration_tests::text::tokens;
use lavalane_runtime::contract::{
    BatchItem, BatchSession, NewSession, OpenSpan, Rows, SessionError, SessionId, Sessions, SessionsOptions,
};
use lavalane_runtime::engine::{EngineOptions, VulkanExecutor};
use lavalane_runtime::ids::TokenId;
use lavalane_runtime::model::Model;
use lavalane_runtime::sampling::Sampled;
use lavalane_runtime::testing::{Fault, FaultInjectingExecutor, FaultScript, When};
use lavalane_runtime::vulkan::{DeviceChoice, Pack};
use std::sync::Arc;
use std::time::Instant;

type Faulty = Sessions<FaultInjectingExecutor<VulkanExecutor>>;

/// Tokens of the prompts. The first two have their first page in common, and the third is only begun.
const PROMPTS: [usize; 3] = [70, 50, 45];
const BEGUN: usize = 16;
/// How many draws each session ends with.
const REPLY: usize = 8;

fn sessions(pack: Pack, script: &FaultScript) -> Option<Faulty> {
    let path = models::find(ModelFile::SmolLm2)?;
    let model = Arc::new(Model::open(path).expect("the model opens"));
    let options = EngineOptions {
        choice: DeviceChoice { pack: Some(pack), ..DeviceChoice::default() },
        lanes: 4,
        context_tokens: Some(128),
        batch_rows_max: 64,
        submission_rows_max: 64,
        ..Default::default()
    };
    let executor = VulkanExecutor::new(model, &options).expect("the model fits the device");
    let executor = FaultInjectingExecutor::new(executor, script.clone());
    Some(Sessions::new(executor, SessionsOptions { slice_rows: Some(32), ..Default::default() }))
}

fn prompts() -> Vec<Vec<TokenId>> {
    let mut prompts: Vec<Vec<TokenId>> =
        (0..).zip(PROMPTS).map(|(seed, length)| tokens(length as u32, seed)).collect();
    let common = prompts[0][..40].to_vec();
    prompts[1][..40].copy_from_slice(&common);
    prompts
}

/// Two sessions that decode, one in the middle of its prompt, and one with a verified span that is open.
struct Scene {
    sessions: Faulty,
    prompts: Vec<Vec<TokenId>>,
    ids: Vec<SessionId>,
    drawn: Vec<Vec<Sampled>>,
    verified: (SessionId, OpenSpan),
}

impl Scene {
    fn begin(pack: Pack, script: &FaultScript) -> Option<Self> {
        let mut sessions = sessions(pack, script)?;
        let prompts = prompts();
        let mut admit = || sessions.admit(NewSession::new(telling_draws())).expect("a lane is idle");
        let ids: Vec<SessionId> = (0..3).map(|_| admit()).collect();
        let verified = admit();
        let mut drawn = vec![Vec::new(); 3];
        for session in 0..2 {
            let from = sessions.resume(ids[session], &prompts[session]).expect("it is active").tokens();
            assert_eq!(from > 0, session == 1, "the second begins with a page of the first");
            let first = sessions.prefill_sampled(ids[session], &prompts[session][from..]);
            drawn[session].push(first.expect("the device runs"));
        }
        sessions.prefill(ids[2], &prompts[2][..BEGUN]).expect("the device runs");
        sessions.prefill_sampled(verified, &tokens(20, 9)).expect("the device runs");
        let start = sessions.position(verified).expect("its counts agree").tracked;
        sessions.verify(verified, &tokens(5, 10)).expect("the device runs");
        let verified = (verified, OpenSpan { start, count: 5 });
        let mut scene = Self { sessions, prompts, ids, drawn, verified };
        (0..3).for_each(|_| scene.decode(2));
        Some(scene)
    }

    fn last(&self, session: usize) -> TokenId {
        self.drawn[session].last().expect("it has drawn").token
    }

    /// A step of the first `count` sessions.
    fn decode(&mut self, count: usize) {
        let rows: Vec<_> = (0..count).map(|session| (self.ids[session], self.last(session))).collect();
        let all = self.sessions.decode_batch(&rows).expect("the device runs");
        self.drawn.iter_mut().zip(all).for_each(|(drawn, sampled)| drawn.push(sampled));
    }

    /// The same step, with another slice of the third's prompt in it. Whoever has advanced already is left
    /// out. Gives what the batch said of those that did not run.
    fn mixed_step(&mut self, advanced: &[usize]) -> Option<SessionError> {
        let rows = [
            Rows::Decode(self.last(0)),
            Rows::Decode(self.last(1)),
            Rows::Prefill(self.prompts[2][BEGUN..2 * BEGUN].to_vec()),
        ];
        let mut items = Vec::new();
        for (index, rows) in rows.into_iter().enumerate().filter(|(index, _)| !advanced.contains(index)) {
            let from = self.sessions.position(self.ids[index]).expect("its counts agree").tracked;
            items.push(BatchItem { session: BatchSession::Active(self.ids[index]), from, rows });
        }
        if items.is_empty() {
            return None;
        }
        match self.sessions.iteration_batch(items) {
            Ok(outcomes) => {
                for outcome in outcomes {
                    let index = self.ids.iter().position(|id| *id == outcome.session).expect("it is one");
                    self.drawn[index].extend(outcome.sampled);
                }
                None
            }
            Err(error) => {
                for outcome in error.partial().expect("it is a batch's account").ran() {
                    self.drawn[outcome.lane.index()].extend(outcome.sampled.iter().cloned());
                }
                Some(error)
            }
        }
    }

    /// Ends the third's prompt and everybody's reply; what the verified session draws after its span, too.
    fn end(mut self) -> Vec<Vec<Sampled>> {
        let rest = self.prompts[2][2 * BEGUN..].to_vec();
        let first = self.sessions.prefill_sampled(self.ids[2], &rest).expect("the device runs");
        self.drawn[2].push(first);
        while self.drawn[0].len() < REPLY {
            self.decode(3);
        }
        let (session, span) = self.verified;
        self.sessions.retire(session, span.start, span.count).expect("it is the open span");
        let after = self.sessions.decode(session, TokenId(1234)).expect("the device runs");
        self.drawn.push(vec![after]);
        self.drawn
    }
}

fn undisturbed(pack: Pack) -> Option<Vec<Vec<Sampled>>> {
    let mut scene = Scene::begin(pack, &FaultScript::new())?;
    assert!(scene.mixed_step(&[]).is_none(), "nothing goes wrong");
    Some(scene.end())
}

/// Lets `fault` happen in the mixed step, of which the sessions in `advanced` then have run, and another in the
/// replay where there is one; all go on to draw what they draw `undisturbed`.
fn check(
    pack: Pack,
    fault: Fault,
    advanced: &[usize],
    in_replay: Option<Fault>,
    undisturbed: &[Vec<Sampled>],
) {
    let script = FaultScript::new();
    let Some(mut scene) = Scene::begin(pack, &script) else { return };
    let before: Vec<_> =
        scene.ids.iter().map(|id| scene.sessions.tokens(*id).expect("active").len()).collect();
    script.now(fault.clone());
    // A device that is lost once everything was read back is only missed by the next step.
    let ran = match scene.mixed_step(&[]) {
        None => vec![0, 1, 2],
        Some(error) => {
            let account = error.partial().expect("it is a batch's account");
            account.ran().iter().map(|ran| ran.lane.index()).collect()
        }
    };
    assert_eq!(ran, advanced, "{fault:?}");
    assert!(scene.sessions.decode(scene.ids[0], TokenId(5)).is_err(), "nothing runs on a lost device");
    if let Some(fault) = in_replay {
        script.now(fault);
        assert!(matches!(scene.sessions.recover(), Err(SessionError::NotRecovered(_))));
    }
    let began = Instant::now();
    scene.sessions.recover().expect("a device is made");
    println!("made again, and all tokens run again, in {:.3} s", began.elapsed().as_secs_f64());
    let steps = [1, 1, BEGUN];
    for (index, id) in scene.ids.iter().enumerate() {
        let moved = if advanced.contains(&index) { steps[index] } else { 0 };
        let position = scene.sessions.position(*id).expect("its counts agree");
        assert_eq!(position.device.tokens(), before[index] + moved, "session {index} after {fault:?}");
    }
    assert!(scene.mixed_step(advanced).is_none(), "the others run it now");
    assert_eq!(scene.end(), undisturbed, "{fault:?}: tokens, log-probabilities and signals");
}

#[test]
fn sessions_go_on_with_the_same_bits_after_a_device_was_lost_before_during_and_after_a_step() {
    let Some(undisturbed) = undisturbed(Pack::Cpu) else { return };
    for (when, advanced) in [(When::Before, &[][..]), (When::During(1), &[0]), (When::After, &[0, 1, 2])] {
        check(Pack::Cpu, Fault::DeviceLost(when), advanced, None, &undisturbed);
    }
}

#[test]
fn sessions_go_on_with_the_same_bits_after_the_executor_panicked_and_the_next_device_was_lost_in_the_replay()
{
    let Some(undisturbed) = undisturbed(Pack::Cpu) else { return };
    let again = Fault::DeviceLost(When::Before);
    check(Pack::Cpu, Fault::Panic(When::After), &[], Some(again), &undisturbed);
}

#[test]
fn sessions_go_on_with_the_same_bits_after_a_loss_on_the_subgroup_pack() {
    let Some(undisturbed) = undisturbed(Pack::Subgroup) else { return };
    let fault = Fault::DeviceLost(When::During(2));
    check(Pack::Subgroup, fault, &[0, 1], None, &undisturbed);
}
