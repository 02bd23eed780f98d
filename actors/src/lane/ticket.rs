//! A request on its way through the engine: what is asked, what came of it so far, and everything
//! that must outlive a lane, a session or a device.

use crate::request::{
    EndTokens, Failure, FinishReason, Finished, RequestEvent, TokenEvent, Usage, ValidRequest,
};
use crate::shared::Shared;
use crate::status::RequestId;
use crate::stream::{Cancellation, EventSink, ReaderTooSlow};
use lavalane_runtime::ids::{LaneId, TokenId};
use lavalane_runtime::sampling::{Sampled, Sampler, SignalWindow, TokenSignals, signal_window};
use lavalane_runtime::tokenizer::{StopMatcher, StreamDecoder, TokenText};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;

/// Whether a request was running when the executor died, and so may be what killed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suspicion {
    /// It was not, or has drawn a token since.
    None,
    /// It was: it runs alone until it draws a token.
    Suspect,
}

/// A request's way through the engine, from submission to its final event.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) id: RequestId,
    pub(crate) cancellation: Cancellation,
    pub(crate) submitted: Instant,
    /// Until when it may work; set when it first gets a lane.
    pub(crate) work_until: Option<Instant>,
    /// How many times in a row its work was put into a batch and did not run.
    pub(crate) holds: u32,
    pub(crate) suspicion: Suspicion,
    request: Box<ValidRequest>,
    sink: EventSink,
    /// Given back when the ticket is dropped.
    permit: OwnedSemaphorePermit,
    /// The prompt, and after it the drawn tokens.
    transcript: Vec<TokenId>,
    usage: Usage,
    decoder: StreamDecoder,
    stops: StopMatcher,
    tokens_max: usize,
    /// The last tokens with their signals: as many as the window holds.
    signals: VecDeque<(TokenId, TokenSignals)>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

/// Whether a reply goes on after a token.
#[derive(Debug)]
pub(crate) enum AfterToken {
    /// It does.
    Continue,
    /// It ended with this final event.
    End(RequestEvent),
}

impl Ticket {
    /// A new request's ticket. `sequence_tokens_max` is what one sequence can hold.
    pub(crate) fn new(
        id: RequestId,
        request: Box<ValidRequest>,
        sink: EventSink,
        cancellation: Cancellation,
        permit: OwnedSemaphorePermit,
        sequence_tokens_max: usize,
    ) -> Self {
        let room = sequence_tokens_max.saturating_sub(request.prompt.len());
        Self {
            id,
            cancellation,
            submitted: Instant::now(),
            work_until: None,
            holds: 0,
            suspicion: Suspicion::None,
            sink,
            permit,
            transcript: request.prompt.clone(),
            usage: Usage { prompt_tokens: request.prompt.len(), ..Usage::default() },
            decoder: StreamDecoder::new(),
            stops: StopMatcher::new(&request.stop.texts),
            tokens_max: room.min(request.tokens_max as usize).max(1),
            signals: VecDeque::new(),
            first_token: None,
            last_token: None,
            request,
        }
    }

    /// What was asked.
    pub(crate) fn request(&self) -> &ValidRequest {
        &self.request
    }

    /// How long it may work; `default` where the request sets no limit of its own.
    pub(crate) fn work_limit(&self, default: Duration) -> Duration {
        self.request.work_time_max.unwrap_or(default)
    }

    /// The prompt, and after it the drawn tokens.
    pub(crate) fn transcript(&self) -> &[TokenId] {
        &self.transcript
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.usage.prompt_tokens
    }

    /// Tokens drawn so far.
    pub(crate) fn generated_tokens(&self) -> usize {
        self.usage.completion_tokens
    }

    /// What the request used so far.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    /// Tokens drawn per second since the first; 0 before the second.
    pub(crate) fn tokens_per_second(&self) -> f64 {
        match (self.first_token, self.last_token) {
            (Some(first), Some(last)) if last > first => {
                (self.usage.completion_tokens - 1) as f64 / (last - first).as_secs_f64()
            }
            _ => 0.0,
        }
    }

    /// A sampler that has been told the whole transcript.
    pub(crate) fn sampler(&self) -> Sampler {
        let sampler = Sampler::new(self.request.sampling.clone(), self.request.choice_index);
        let mut sampler = sampler.with_prompt_tokens(self.usage.prompt_tokens);
        sampler.accept(&self.transcript);
        sampler
    }

    /// Notes that the request has a lane, and says so to its client if it is the first.
    pub(crate) fn start(
        &mut self,
        lane: LaneId,
        cached_tokens: usize,
        work_time_max: Duration,
        shared: &Shared,
    ) -> Result<(), ReaderTooSlow> {
        if self.work_until.is_some() {
            return Ok(());
        }
        let now = Instant::now();
        // A limit beyond what the clock can tell is as good as a year.
        let year = Duration::from_secs(365 * 24 * 3600);
        self.work_until = now.checked_add(work_time_max).or_else(|| now.checked_add(year)).or(Some(now));
        self.usage.cached_tokens = cached_tokens;
        {
            let mut statistics = shared.statistics.lock();
            statistics.prompt_tokens += self.usage.prompt_tokens as u64;
            statistics.cached_tokens += cached_tokens as u64;
            statistics.prefix_hits += u64::from(cached_tokens > 0);
            statistics.queue_time.record_time(now - self.submitted);
        }
        self.sink.say(RequestEvent::Started { lane, cached_tokens })
    }

    /// Takes a drawn token into the transcript, says its text, and tells whether the reply ends. The
    /// caller tells the session's sampler.
    pub(crate) fn take_token(
        &mut self,
        sampled: Sampled,
        tokenizer: &dyn TokenText,
        shared: &Shared,
    ) -> AfterToken {
        self.count_token(shared);
        let token = sampled.token;
        self.transcript.push(token);
        let ends = self.request.stop.end_tokens == EndTokens::Stop && tokenizer.is_end_of_generation(token);
        if ends || self.request.stop.tokens.contains(&token) {
            return AfterToken::End(self.finish(FinishReason::Stop { text: None }));
        }
        let certain = self.stops.push(&self.decoder.push(tokenizer, token));
        let window = self.window(&sampled);
        let event = RequestEvent::Token(TokenEvent { sampled, text: certain.text, window });
        if let Err(ReaderTooSlow { buffered }) = self.sink.say(event) {
            return AfterToken::End(RequestEvent::Failed(Failure::SlowReader { buffered }));
        }
        if let Some(stop) = certain.stop {
            let reason = FinishReason::Stop { text: Some(stop) };
            let finished = Finished { reason, text: String::new(), usage: self.usage };
            return AfterToken::End(RequestEvent::Finished(finished));
        }
        if self.usage.completion_tokens >= self.tokens_max {
            return AfterToken::End(self.finish(FinishReason::Length));
        }
        AfterToken::Continue
    }

    /// Takes a token into the window, and sums the window up.
    fn window(&mut self, sampled: &Sampled) -> Option<SignalWindow> {
        let size = self.request.signal_window?.get() as usize;
        self.signals.push_back((sampled.token, sampled.signals?));
        if self.signals.len() > size {
            self.signals.pop_front();
        }
        signal_window(self.signals.make_contiguous())
    }

    fn count_token(&mut self, shared: &Shared) {
        let now = Instant::now();
        self.usage.completion_tokens += 1;
        self.holds = 0;
        self.suspicion = Suspicion::None;
        let mut statistics = shared.statistics.lock();
        statistics.generation_tokens += 1;
        match self.last_token.replace(now) {
            Some(last) => statistics.inter_token_time.record_time(now - last),
            None => {
                self.first_token = Some(now);
                statistics.first_token_time.record_time(now - self.submitted);
            }
        }
    }

    fn finish(&mut self, reason: FinishReason) -> RequestEvent {
        // An unfinished character may still complete a stop text; then nothing follows it.
        let mut last = self.stops.push(&self.decoder.finish());
        if last.stop.is_none() {
            last.text.push_str(&self.stops.finish());
        }
        RequestEvent::Finished(Finished { reason, text: last.text, usage: self.usage })
    }

    /// Ends the request: counts it, gives its permit back, and then says the final event, so that a
    /// client that has heard it finds the place free.
    pub(crate) fn end(self, event: RequestEvent, shared: &Shared) {
        {
            let mut statistics = shared.statistics.lock();
            match &event {
                RequestEvent::Finished(finished) => {
                    match finished.reason {
                        FinishReason::Stop { .. } => statistics.requests_stopped += 1,
                        FinishReason::Length => statistics.requests_length += 1,
                    }
                    statistics.request_time.record_time(self.submitted.elapsed());
                }
                RequestEvent::Cancelled(_) => statistics.requests_cancelled += 1,
                RequestEvent::Refused(_) => statistics.requests_refused += 1,
                RequestEvent::Failed(_) | RequestEvent::Started { .. } | RequestEvent::Token(_) => {
                    statistics.requests_failed += 1;
                }
            }
        }
        drop(self.permit);
        self.sink.end(event);
    }
}
