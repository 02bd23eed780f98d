//! Tests of the session contract: each operation's rules by name, and random sequences against a model.

mod images;
mod model;
mod operations;
mod random;
mod refusals;
mod rules;
mod together;

use super::{NewSession, SessionId, Sessions, SessionsOptions};
use crate::ids::TokenId;
use crate::sampling::SamplingSettings;
use crate::testing::{FaultInjectingExecutor, FaultScript, ScriptedExecutor, scripted_limits};

type Scripted = Sessions<FaultInjectingExecutor<ScriptedExecutor>>;

/// Sessions on the small scripted device, with eight rows a slice.
fn scripted() -> (Scripted, FaultScript) {
    let script = FaultScript::new();
    let executor = FaultInjectingExecutor::new(ScriptedExecutor::new(scripted_limits()), script.clone());
    let options = SessionsOptions { slice_rows: Some(8), ..SessionsOptions::default() };
    (Sessions::new(executor, options), script)
}

fn greedy() -> NewSession {
    NewSession::new(SamplingSettings::greedy())
}

/// Penalties and random numbers: everything that a draw can depend on.
fn demanding() -> NewSession {
    NewSession::new(model::settings(2))
}

fn prompt(count: u32, seed: u32) -> Vec<TokenId> {
    (0..count).map(|at| TokenId((at * 7 + seed * 13) % 50 + 5)).collect()
}

/// Admits a session, runs `tokens`, and decodes `count` tokens; gives the draws.
fn reply(sessions: &mut Scripted, new: NewSession, tokens: &[TokenId], count: usize) -> Vec<TokenId> {
    let session = sessions.admit(new).expect("a lane is idle");
    let mut drawn = vec![sessions.prefill_sampled(session, tokens).expect("it runs").token];
    go_on(sessions, session, &mut drawn, count);
    sessions.drop_session(session).expect("it is active");
    drawn
}

/// Decodes until `drawn` holds `count` tokens.
fn go_on(sessions: &mut Scripted, session: SessionId, drawn: &mut Vec<TokenId>, count: usize) {
    while drawn.len() < count {
        let last = *drawn.last().expect("the prompt drew one");
        drawn.push(sessions.decode(session, last).expect("it runs").token);
    }
}
