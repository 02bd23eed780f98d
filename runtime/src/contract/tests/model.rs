//! The contract in a few plain lines: what each session holds, and what it would draw.

use super::super::{NewSession, OpenSpan, SessionError, SessionId};
use crate::batch::{BatchFaultCause, LaneFaultCause, PartialBatchError};
use crate::ids::{Position, TokenId};
use crate::sampling::{Sampled, SamplingOptions, SamplingSettings, SignalReport};
use crate::testing::{expected_reply, scripted_limits};
use std::collections::BTreeMap;

/// Whether a session can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Active,
    Stopped,
    /// Its tokens wait to be run again.
    Lost,
}

/// What a session is, by the contract.
#[derive(Clone, Debug)]
pub(super) struct ModelSession {
    pub(super) tokens: Vec<TokenId>,
    pub(super) prompt_tokens: usize,
    pub(super) open: Option<OpenSpan>,
    pub(super) life: Life,
    pub(super) settings: SamplingSettings,
    /// Draws with signals: place and token.
    pub(super) drawn: Vec<(usize, TokenId)>,
}

/// Whether rows count as prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Prompt,
    Reply,
}

impl ModelSession {
    pub(super) fn new(new: &NewSession) -> Self {
        Self {
            tokens: Vec::new(),
            prompt_tokens: 0,
            open: None,
            life: Life::Active,
            settings: new.sampling.clone(),
            drawn: Vec::new(),
        }
    }

    pub(super) fn position(&self) -> Position {
        Position::START.advance(self.tokens.len())
    }

    /// What is drawn after the session's tokens.
    fn next(&self) -> TokenId {
        let vocabulary = scripted_limits().vocabulary;
        expected_reply(vocabulary, &self.tokens, self.prompt_tokens, &self.settings, 0, 1)[0]
    }

    /// The session runs `tokens`, and `sampled` was drawn after the last rows: checks each draw.
    pub(super) fn run(&mut self, tokens: &[TokenId], kind: Kind, sampled: &[Sampled]) {
        let first = tokens.len() - sampled.len();
        for (row, &token) in tokens.iter().enumerate() {
            self.tokens.push(token);
            if kind == Kind::Prompt {
                self.prompt_tokens = self.tokens.len();
            }
            if let Some(sampled) = row.checked_sub(first).map(|draw| &sampled[draw]) {
                assert_eq!(sampled.token, self.next(), "the draw after {} tokens", self.tokens.len());
                assert_eq!(sampled.signals.is_some(), self.with_signals());
                if self.with_signals() {
                    self.drawn.push((self.tokens.len(), sampled.token));
                }
            }
        }
    }

    pub(super) fn trim(&mut self, tokens: usize) {
        self.tokens.truncate(tokens);
        self.prompt_tokens = self.prompt_tokens.min(tokens);
        self.drawn.retain(|&(place, _)| place <= tokens);
        self.open = None;
    }

    fn with_signals(&self) -> bool {
        self.settings.options().signals == SignalReport::On
    }
}

/// All sessions that were admitted and not dropped.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) sessions: BTreeMap<SessionId, ModelSession>,
    /// Whether the device is lost.
    pub(super) lost: bool,
}

impl Model {
    /// What a partial batch of `members` means: each is named once, and those that failed for anything but
    /// memory have stopped.
    pub(super) fn account(&mut self, members: &[SessionId], partial: &PartialBatchError) {
        let lanes = |lanes: &mut Vec<u32>| {
            lanes.sort_unstable();
            lanes.clone()
        };
        let ran = partial.ran().iter().map(|outcome| outcome.lane.0);
        let faulted = partial.faulted().iter().map(|fault| fault.lane.0);
        let mut named = ran.chain(faulted).chain(partial.not_run().iter().map(|lane| lane.0)).collect();
        let mut expected = members.iter().map(|session| session.lane().0).collect();
        assert_eq!(lanes(&mut named), lanes(&mut expected), "each lane of the batch is named once");
        assert!(partial.ran().len() < members.len(), "a batch that ran whole is no error");
        for fault in partial.faulted() {
            let session = members.iter().find(|session| session.lane() == fault.lane).expect("named above");
            if fault.cause != LaneFaultCause::OutOfMemory {
                self.sessions.get_mut(session).expect("it is active").life = Life::Stopped;
            }
        }
        let cause = partial.cause();
        self.lost |= matches!(cause, BatchFaultCause::DeviceLost(_) | BatchFaultCause::ExecutorDied(_));
    }

    /// The refusal that every operation on a session that is not active gives, if it is not.
    pub(super) fn check_refused(&self, session: SessionId, error: &SessionError) -> bool {
        match self.sessions.get(&session).map(|session| session.life) {
            None => assert!(matches!(error, SessionError::Inactive { .. }), "{error}"),
            Some(Life::Stopped) => assert!(matches!(error, SessionError::Stopped { .. }), "{error}"),
            Some(Life::Lost) => assert!(matches!(error, SessionError::Lost { .. }), "{error}"),
            Some(Life::Active) => return false,
        }
        true
    }

    pub(super) fn is_active(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|session| session.life == Life::Active)
    }
}

/// Three ways to draw, which differ in everything that a session keeps.
pub(super) fn settings(kind: u8) -> SamplingSettings {
    let options = match kind % 3 {
        0 => SamplingOptions { temperature: 0.0, ..SamplingOptions::default() },
        1 => SamplingOptions { seed: Some(5), signals: SignalReport::On, ..SamplingOptions::default() },
        _ => SamplingOptions {
            seed: Some(9),
            repetition_penalty: 1.3,
            repetition_window: Some(12),
            presence_penalty: 0.7,
            frequency_penalty: 0.3,
            // The tokens that the tests use are nearly all that is drawn: which of them is for the
            // penalties to say, so that a token counted once too often changes the draws.
            logit_bias: (1..4).map(|token| (TokenId(token), 12.0)).collect(),
            signals: SignalReport::On,
            ..SamplingOptions::default()
        },
    };
    SamplingSettings::new(options, 0).expect("the options are in range")
}
