//! Tests of taking and restoring images, over an executor that has pages and computes nothing.

use super::super::identity::IdentityField;
use super::super::identity::tests::identity;
use super::*;
use crate::batch::{BatchDone, ExecutorLimits, IterationBatch};
use crate::sampling::{Sampler, SamplingSettings};
use crate::session::LengthSlot;

const POOL: usize = 8;

/// Pages in ordinary memory.
struct PageMemory {
    identity: SnapshotIdentity,
    pages: Vec<Vec<u8>>,
    lost: bool,
}

impl PageMemory {
    fn new() -> Self {
        let page = |page: u8| vec![page; 24];
        Self { identity: identity(), pages: (0..POOL as u8).map(page).collect(), lost: false }
    }

    fn check(&self, pages: &[PageId], bytes: usize) -> Result<(), PageTransferError> {
        PageTransferError::check(pages, bytes, POOL, 24)?;
        if self.lost { Err(PageTransferError::DeviceLost("in the test".to_owned())) } else { Ok(()) }
    }
}

impl BatchExecutor for PageMemory {
    fn limits(&self) -> ExecutorLimits {
        ExecutorLimits {
            batch_rows_max: 1,
            lane_rows_max: 1,
            lanes_max: 1,
            context_tokens_max: 16,
            page_tokens: 4,
            pages: POOL,
            vocabulary: 100,
        }
    }

    fn run(&mut self, _batch: IterationBatch) -> BatchDone {
        unreachable!("moving pages runs no batch")
    }

    fn recover(&mut self) -> Result<(), String> {
        self.lost = false;
        Ok(())
    }

    fn identity(&self) -> SnapshotIdentity {
        self.identity.clone()
    }

    fn export_pages(&mut self, pages: &[PageId]) -> Result<Vec<u8>, PageTransferError> {
        self.check(pages, pages.len() * 24)?;
        Ok(pages.iter().flat_map(|page| self.pages[page.index()].clone()).collect())
    }

    fn import_pages(&mut self, pages: &[PageId], bytes: &[u8]) -> Result<(), PageTransferError> {
        self.check(pages, bytes.len())?;
        for (page, content) in pages.iter().zip(bytes.chunks_exact(24)) {
            self.pages[page.index()] = content.to_vec();
        }
        Ok(())
    }
}

fn tokens(count: u32) -> Vec<TokenId> {
    (0..count).map(TokenId).collect()
}

fn session() -> Session {
    Session::new(LengthSlot(0), Sampler::new(SamplingSettings::greedy(), 0))
}

/// An image of six tokens in pages 5 and 2.
fn image(executor: &mut PageMemory) -> Image {
    let mut session = session();
    session.adopt_prefix(vec![PageId(5), PageId(2), PageId(7)], Position::START.advance(6));
    Image::take(executor, &session, &tokens(6)).expect("the session holds six tokens")
}

/// Restores and sees that an error leaves session and pages as they were.
fn check_refused(
    executor: &mut PageMemory,
    image: &Image,
    pages: &[PageId],
    when: WhenIncompatible,
) -> ImageError {
    let mut session = session();
    let before = executor.pages.clone();
    let error = image.restore(executor, &mut session, pages, when).expect_err("it is refused");
    assert_eq!((session.length(), session.pages().len()), (Position::START, 0));
    assert_eq!(executor.pages, before);
    error
}

#[test]
fn an_image_is_restored_into_another_session_and_after_a_file() {
    let mut executor = PageMemory::new();
    let image = image(&mut executor);
    let image = Image::from_bytes(&image.to_bytes()).expect("it is whole");
    let mut session = session();
    let pages = [PageId(0), PageId(1), PageId(3)];
    let restored = image.restore(&mut executor, &mut session, &pages, WhenIncompatible::Refuse);
    assert_eq!(restored, Ok(Restored::Imported));
    assert_eq!((session.length().tokens(), session.pages()), (6, &pages[..]));
    assert_eq!((executor.pages[0][0], executor.pages[1][0], executor.pages[3][0]), (5, 2, 3));
}

#[test]
fn an_image_of_another_executor_is_refused_or_replayed_as_the_caller_says() {
    let mut executor = PageMemory::new();
    let image = image(&mut executor);
    executor.identity.kv_type = "f32".to_owned();
    let error = check_refused(&mut executor, &image, &[PageId(0), PageId(1)], WhenIncompatible::Refuse);
    assert!(
        matches!(&error, ImageError::Incompatible(reason) if reason.field == IdentityField::KvType),
        "{error:?}"
    );
    let mut session = session();
    let replay = image.restore(&mut executor, &mut session, &[], WhenIncompatible::Replay);
    assert_eq!(replay, Ok(Restored::ToReplay(tokens(6))));
    assert_eq!(session.length(), Position::START);
}

#[test]
fn whatever_fails_leaves_the_session_as_it_was() {
    let mut executor = PageMemory::new();
    let image = image(&mut executor);
    let refuse = WhenIncompatible::Refuse;
    let error = check_refused(&mut executor, &image, &[PageId(0)], refuse);
    assert_eq!(error, ImageError::TooFewPages { tokens: 6, needed: 2, given: 1 });
    let error = check_refused(&mut executor, &image, &[PageId(0), PageId(99)], refuse);
    assert_eq!(error, PageTransferError::UnknownPage { page: PageId(99), pages: POOL }.into());
    executor.lost = true;
    let error = check_refused(&mut executor, &image, &[PageId(0), PageId(1)], refuse);
    assert!(matches!(error, ImageError::Transfer(PageTransferError::DeviceLost(_))), "{error:?}");
    executor.lost = false;
    let long = Image::new(identity(), tokens(17), vec![0; 5 * 24]).expect("five pages");
    let error = check_refused(&mut executor, &long, &[], refuse);
    assert_eq!(error, ImageError::TooLong { tokens: 17, context: 16 });
    let foreign = Image::new(identity(), vec![TokenId(100)], vec![0; 24]).expect("one page");
    let error = check_refused(&mut executor, &foreign, &[PageId(0)], WhenIncompatible::Replay);
    assert_eq!(error, ImageError::UnknownToken { token: TokenId(100), vocabulary: 100 });

    let mut used = session();
    used.adopt_prefix(vec![PageId(1)], Position::START.advance(3));
    let error = image.restore(&mut executor, &mut used, &[PageId(0), PageId(2)], refuse);
    assert_eq!(error, Err(ImageError::SessionNotEmpty { tokens: 3, pages: 1 }));
    assert_eq!((used.length().tokens(), used.pages()), (3, &[PageId(1)][..]));
}

#[test]
fn a_session_is_kept_only_with_the_tokens_that_it_holds() {
    let mut executor = PageMemory::new();
    assert_eq!(Image::take(&mut executor, &session(), &[]), Err(ImageError::SessionEmpty));
    let mut session = session();
    session.adopt_prefix(vec![PageId(1)], Position::START.advance(3));
    let error = Image::take(&mut executor, &session, &tokens(4));
    assert_eq!(error, Err(ImageError::OtherTokens { session: 3, named: 4 }));
}

#[test]
fn an_image_without_tokens_or_with_another_length_is_none() {
    assert!(Image::new(identity(), Vec::new(), Vec::new()).is_err());
    assert!(Image::new(identity(), tokens(4), vec![0; 23]).is_err());
    assert!(Image::new(identity(), tokens(4), vec![0; 48]).is_err());
    assert!(Image::new(SnapshotIdentity { page_bytes: 0, ..identity() }, tokens(4), vec![0; 24]).is_err());
}
