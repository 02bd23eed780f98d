//! Refusals in random sequences: each must be for a reason that the model knows.

use super::super::{BatchItem, BatchSession, Rows, SessionError, SessionId};
use super::random::{LIMITS, Pair};
use crate::ids::TokenId;

impl Pair {
    /// A refusal must be for a reason that the model knows, and change nothing.
    pub(super) fn check_refusal(&self, session: SessionId, tokens: &[TokenId], error: &SessionError) {
        if self.model.check_refused(session, error) {
            return;
        }
        let held = &self.model.sessions[&session];
        let end = held.tokens.len() + tokens.len();
        let reason = match error {
            SessionError::Empty => tokens.is_empty(),
            SessionError::SpanOpen { span, .. } => held.open == Some(*span),
            SessionError::ContextFull { .. } => end > LIMITS.context_tokens_max,
            SessionError::TokenOutsideVocabulary { token, .. } => tokens.contains(token),
            _ => false,
        };
        assert!(reason, "{error} for {tokens:?} after {held:?}");
    }

    pub(super) fn check_batch_refusal(&self, items: &[BatchItem], error: &SessionError) {
        let tokens = |item: &BatchItem| match &item.rows {
            Rows::Prefill(tokens) | Rows::PrefillSampled(tokens) => tokens.clone(),
            Rows::Verify(tokens) | Rows::Recompute(tokens) => tokens.clone(),
            Rows::Decode(token) => vec![*token],
        };
        let rows: usize = items.iter().map(|item| tokens(item).len()).sum();
        let active = |session: SessionId| {
            items.iter().filter(|item| item.session == BatchSession::Active(session)).count()
        };
        let new = items.iter().filter(|item| matches!(item.session, BatchSession::New(_))).count();
        let reason = match error {
            SessionError::Empty => items.is_empty() || items.iter().any(|item| tokens(item).is_empty()),
            SessionError::Duplicate { session } => active(*session) > 1,
            SessionError::TooManyRows { most, .. } => rows > *most,
            SessionError::AllLanesBusy { .. } => new + self.model.sessions.len() > LIMITS.lanes_max,
            SessionError::WrongPosition { session, tracked, .. } => {
                *tracked == self.model.sessions[session].position()
            }
            SessionError::SpanOpen { session, span } => self.model.sessions[session].open == Some(*span),
            SessionError::ContextFull { tokens, .. } => *tokens > LIMITS.context_tokens_max,
            SessionError::TokenOutsideVocabulary { token, .. } => token.index() >= LIMITS.vocabulary,
            SessionError::Inactive { session }
            | SessionError::Stopped { session, .. }
            | SessionError::Lost { session } => self.model.check_refused(*session, error),
            _ => false,
        };
        assert!(reason, "{error} for {items:?}");
    }
}
