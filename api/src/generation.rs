//! From a validated request to running choices and their merged events. HTTP replies, server-sent
//! events and WebSocket events are only different ways to write down what comes out here.

use crate::error::{ApiError, ErrorKind};
use crate::random;
use crate::text_model::TextModel;
use crate::wire::chat::ChatRequest;
use crate::wire::common::CommonRequest;
use crate::wire::completion::{CompletionRequest, Prompt};
use crate::wire::signals::Signals;
use futures_util::stream::{SelectAll, Stream, StreamExt};
use lavalane_actors::request::{
    EndTokens, FinishReason, Finished, RequestEvent, TokenEvent, Usage, ValidRequest,
};
use lavalane_actors::stream::Cancellation;
use lavalane_actors::{EngineHandle, RequestStream};
use lavalane_runtime::ids::TokenId;
use lavalane_runtime::sampling::SamplingSettings;
use lavalane_runtime::tokenizer::TokenText;
use std::pin::Pin;
use std::task::{Context, Poll};

/// What a drawn token is to its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenPart {
    /// A part of it.
    Said,
    /// It only ends the reply.
    End,
}

/// A prompt as tokens, and the field it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenPrompt {
    /// The field's path.
    pub field: String,
    /// The tokens; never empty.
    pub tokens: Vec<TokenId>,
}

/// A request that is ready to run.
#[derive(Clone, Debug)]
pub struct Job {
    prompts: Vec<TokenPrompt>,
    common: CommonRequest,
    sampling: SamplingSettings,
}

impl Job {
    /// Renders and encodes a conversation.
    ///
    /// # Errors
    /// The template refuses it, another model is asked for, or a sampling field is out of range.
    pub fn chat(request: ChatRequest, model: &TextModel) -> Result<Self, ApiError> {
        model.check_name(request.common.model.as_deref())?;
        let tokens = model.encode_chat(&request.messages)?;
        Self::new(vec![TokenPrompt { field: "messages".to_owned(), tokens }], request.common, model)
    }

    /// Encodes the prompts of a completion.
    ///
    /// # Errors
    /// As for [`Job::chat`].
    pub fn completion(request: CompletionRequest, model: &TextModel) -> Result<Self, ApiError> {
        model.check_name(request.common.model.as_deref())?;
        let encode = |(field, prompt)| {
            let tokens = match prompt {
                Prompt::Text(text) => model.encode_prompt(&text),
                Prompt::Tokens(tokens) => tokens,
            };
            TokenPrompt { field, tokens }
        };
        Self::new(request.prompts.into_iter().map(encode).collect(), request.common, model)
    }

    fn new(prompts: Vec<TokenPrompt>, common: CommonRequest, model: &TextModel) -> Result<Self, ApiError> {
        if let Some(empty) = prompts.iter().find(|prompt| prompt.tokens.is_empty()) {
            let message = format!("`{}` is empty: there is nothing to continue", empty.field);
            return Err(ApiError::field(ErrorKind::InvalidValue, empty.field.as_str(), message));
        }
        let sampling = SamplingSettings::new(common.sampling.clone(), random::word())?;
        sampling.check_vocabulary(model.vocabulary())?;
        Ok(Self { prompts, common, sampling })
    }

    /// The fields that all generating requests have.
    pub fn common(&self) -> &CommonRequest {
        &self.common
    }

    /// How many choices the reply has, over all prompts.
    pub fn choices(&self) -> usize {
        self.prompts.len() * self.common.choices as usize
    }

    /// The field that holds a choice's prompt.
    pub fn prompt_field(&self, choice: usize) -> &str {
        &self.prompts[choice / self.common.choices as usize].field
    }

    /// What a drawn token is to the reply.
    pub fn part(&self, model: &TextModel, token: TokenId) -> TokenPart {
        let stop = &self.common.stop;
        let ends = stop.tokens.contains(&token)
            || stop.end_tokens == EndTokens::Stop && model.tokenizer().is_end_of_generation(token);
        if ends { TokenPart::End } else { TokenPart::Said }
    }

    fn requests(&self) -> impl Iterator<Item = ValidRequest> {
        let choices = move |prompt: &TokenPrompt| {
            let prompt = prompt.tokens.clone();
            (0..self.common.choices).map(move |choice_index| ValidRequest {
                prompt: prompt.clone(),
                sampling: self.sampling.clone(),
                choice_index,
                tokens_max: self.common.tokens_max.unwrap_or(u32::MAX),
                stop: self.common.stop.clone(),
                queue_wait_max: self.common.time_limits.queue_wait_max,
                work_time_max: self.common.time_limits.work_time_max,
                priority: self.common.priority,
                signal_window: match self.common.signals {
                    Signals::Off => None,
                    Signals::On { window } => Some(window),
                },
            })
        };
        self.prompts.iter().flat_map(choices)
    }

    /// Hands every choice to the engine. Either all are taken, or none runs on.
    ///
    /// # Errors
    /// The engine refuses one, they are more than it can ever hold at once, or they want more time than it
    /// gives.
    pub async fn submit(&self, engine: &EngineHandle) -> Result<Choices, ApiError> {
        self.common.time_limits.check(engine.settings())?;
        let capacity = engine.settings().lanes + engine.settings().queue_capacity;
        if self.choices() > capacity {
            let message =
                format!("the request has {} choices and the engine holds {capacity}", self.choices());
            return Err(ApiError::field(ErrorKind::InvalidValue, "n", message));
        }
        let mut streams = SelectAll::new();
        let mut cancellations = Vec::with_capacity(self.choices());
        for (choice, request) in self.requests().enumerate() {
            let stream = engine.submit(request).await;
            // The streams that were made are dropped here, which cancels them.
            let stream =
                stream.map_err(|refusal| ApiError::from_refusal(&refusal, self.prompt_field(choice)))?;
            cancellations.push(stream.cancellation());
            streams.push(ChoiceStream { choice, stream });
        }
        Ok(Choices { streams, cancellations })
    }
}

/// The events of all choices of a request, in the order in which they happen. Dropping it cancels the
/// choices that still run.
#[derive(Debug)]
pub struct Choices {
    streams: SelectAll<ChoiceStream>,
    cancellations: Vec<Cancellation>,
}

impl Choices {
    /// The next event with its choice's index; `None` once every choice has ended. Safe to cancel.
    pub async fn next(&mut self) -> Option<(usize, RequestEvent)> {
        self.streams.next().await
    }

    /// Something that cancels all choices from elsewhere; each still ends with its final event.
    pub fn cancellations(&self) -> Vec<Cancellation> {
        self.cancellations.clone()
    }
}

#[derive(Debug)]
struct ChoiceStream {
    choice: usize,
    stream: RequestStream,
}

impl Stream for ChoiceStream {
    type Item = (usize, RequestEvent);

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let event = std::task::ready!(Pin::new(&mut this.stream).poll_next(context));
        Poll::Ready(event.map(|event| (this.choice, event)))
    }
}

/// One choice, complete.
#[derive(Clone, Debug)]
pub struct WholeChoice {
    /// The reply's text.
    pub text: String,
    /// Its tokens, those that only end it left out.
    pub tokens: Vec<TokenEvent>,
    /// Why it ended.
    pub reason: FinishReason,
    /// What it used.
    pub usage: Usage,
}

/// Waits for all choices of a job to finish.
///
/// # Errors
/// A choice was refused or failed; the others are cancelled.
pub async fn collect(
    job: &Job,
    model: &TextModel,
    mut choices: Choices,
) -> Result<Vec<WholeChoice>, ApiError> {
    let mut parts: Vec<(String, Vec<TokenEvent>)> = vec![Default::default(); job.choices()];
    let mut whole: Vec<Option<WholeChoice>> = vec![None; job.choices()];
    while let Some((choice, event)) = choices.next().await {
        match outcome(job, choice, event)? {
            Step::Started => {}
            Step::Token(token) => {
                parts[choice].0.push_str(&token.text);
                if job.part(model, token.sampled.token) == TokenPart::Said {
                    parts[choice].1.push(token);
                }
            }
            Step::Finished(finished) => {
                let (mut text, tokens) = std::mem::take(&mut parts[choice]);
                text.push_str(&finished.text);
                let Finished { reason, usage, .. } = finished;
                whole[choice] = Some(WholeChoice { text, tokens, reason, usage });
            }
        }
    }
    whole.into_iter().collect::<Option<Vec<_>>>().ok_or_else(unfinished)
}

/// A choice's event, failures taken out.
#[derive(Clone, Debug)]
pub enum Step {
    /// It has a lane.
    Started,
    /// A token was drawn.
    Token(TokenEvent),
    /// It is complete.
    Finished(Finished),
}

/// Tells an event of a running request from one that ended it without a result.
///
/// # Errors
/// The choice was refused, failed or was cancelled.
pub fn outcome(job: &Job, choice: usize, event: RequestEvent) -> Result<Step, ApiError> {
    match event {
        RequestEvent::Started { .. } => Ok(Step::Started),
        RequestEvent::Token(token) => Ok(Step::Token(token)),
        RequestEvent::Finished(finished) => Ok(Step::Finished(finished)),
        RequestEvent::Failed(failure) => Err(ApiError::from(&failure)),
        RequestEvent::Refused(refusal) => Err(ApiError::from_refusal(&refusal, job.prompt_field(choice))),
        RequestEvent::Cancelled(_) => {
            Err(ApiError::new(ErrorKind::ShuttingDown, "the request was cancelled"))
        }
    }
}

/// The error for a stream that ended without a final event.
pub fn unfinished() -> ApiError {
    ApiError::new(ErrorKind::EngineFailed, "the engine ended the request without an answer")
}

/// What all choices used together. A prompt counts once however many choices it has, as the OpenAI
/// API counts.
pub fn total_usage(usages: &[Usage], choices_per_prompt: u32) -> Usage {
    let prompts = usages.iter().step_by(choices_per_prompt.max(1) as usize);
    Usage {
        prompt_tokens: prompts.clone().map(|usage| usage.prompt_tokens).sum(),
        cached_tokens: prompts.map(|usage| usage.cached_tokens).sum(),
        completion_tokens: usages.iter().map(|usage| usage.completion_tokens).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_counts_once_however_many_choices_it_has() {
        let usage = |prompt_tokens, cached_tokens, completion_tokens| Usage {
            prompt_tokens,
            cached_tokens,
            completion_tokens,
        };
        let usages = [usage(10, 0, 3), usage(10, 8, 4), usage(20, 5, 1), usage(20, 16, 2)];
        assert_eq!(total_usage(&usages, 2), usage(30, 5, 10));
    }
}
