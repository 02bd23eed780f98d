//! Server-sent events of a streamed reply.
//!
//! The body is polled only while the connection takes bytes. A client that does not read therefore
//! leaves events waiting in the engine, which cuts it when there are too many; the connection itself
//! is cut by the system (`unread_time_max`).

use crate::error::ApiError;
use crate::generation::{Choices, Job, Step, outcome, total_usage, unfinished};
use crate::text_model::TextModel;
use crate::wire::reply::ReplyWriter;
use actix_web::web::Bytes;
use futures_util::Stream;
use lavalane_actors::request::{RequestEvent, Usage};
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// One streamed reply in the making.
#[derive(Debug)]
pub struct EventStream {
    job: Job,
    model: Arc<TextModel>,
    choices: Choices,
    writer: ReplyWriter,
    usages: Vec<Option<Usage>>,
    pending: VecDeque<Bytes>,
    comment_interval: Duration,
    progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Running,
    Ended,
}

impl EventStream {
    /// The stream of `job`'s choices.
    pub fn new(
        job: Job,
        model: Arc<TextModel>,
        choices: Choices,
        writer: ReplyWriter,
        comment_interval: Duration,
    ) -> Self {
        let first = (0..job.choices()).filter_map(|index| writer.first_chunk(index));
        let pending = first.map(|chunk| frame(&chunk)).collect();
        let usages = vec![None; job.choices()];
        let progress = Progress::Running;
        Self { job, model, choices, writer, usages, pending, comment_interval, progress }
    }

    /// Takes in an event that was read before the stream began.
    ///
    /// # Errors
    /// The choice was refused or failed, and no status was sent yet.
    pub fn accept(&mut self, choice: usize, event: RequestEvent) -> Result<(), ApiError> {
        match outcome(&self.job, choice, event)? {
            Step::Started => {}
            Step::Token(token) => {
                let part = self.job.part(&self.model, token.sampled.token);
                let chunk = self.writer.token_chunk(choice, &token, part);
                self.pending.extend(chunk.as_ref().map(frame));
            }
            Step::Finished(finished) => {
                self.pending.extend(self.writer.last_chunks(choice, &finished).iter().map(frame));
                self.usages[choice] = Some(finished.usage);
            }
        }
        Ok(())
    }

    /// The next event of any choice.
    pub async fn next_event(&mut self) -> Option<(usize, RequestEvent)> {
        self.choices.next().await
    }

    /// The body.
    pub fn into_body(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        futures_util::stream::unfold(self, |mut stream| async move {
            let bytes = stream.next_bytes().await?;
            Some((Ok(bytes), stream))
        })
    }

    async fn next_bytes(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.pending.pop_front() {
                return Some(bytes);
            }
            if self.progress == Progress::Ended {
                return None;
            }
            match tokio::time::timeout(self.comment_interval, self.choices.next()).await {
                Err(_) => return Some(Bytes::from_static(b": waiting\n\n")),
                Ok(Some((choice, event))) => {
                    if let Err(error) = self.accept(choice, event) {
                        self.end(Err(error));
                    }
                }
                Ok(None) => {
                    let usages: Option<Vec<Usage>> = self.usages.iter().copied().collect();
                    self.end(usages.ok_or_else(unfinished));
                }
            }
        }
    }

    fn end(&mut self, usages: Result<Vec<Usage>, ApiError>) {
        self.progress = Progress::Ended;
        match usages {
            Ok(usages) => {
                let usage = total_usage(&usages, self.job.common().choices);
                self.pending.extend(self.writer.usage_chunk(usage).as_ref().map(frame));
            }
            Err(error) => {
                for cancellation in self.choices.cancellations() {
                    cancellation.cancel();
                }
                self.pending.push_back(frame(&error.body()));
            }
        }
        self.pending.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    }
}

fn frame(value: &Value) -> Bytes {
    // JSON as serde_json writes it holds no line break, so one `data:` line is enough.
    Bytes::from(format!("data: {value}\n\n"))
}
