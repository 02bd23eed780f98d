//! Bookkeeping of the KV cache: which page of the device's pool holds which tokens, and who reads it.
//!
//! Nothing here touches a device. One owner, the scheduler, asks for pages before it plans a batch and
//! says afterwards what became of them. A page is *held* by the sessions in whose tables it stands and
//! by the prefix tree while its content may be found again; it is free when nobody holds it. Only a page
//! that a single session holds may be written; anything else is copied first.

mod cache;
mod pool;
mod prefix;
mod sizing;

pub use cache::{KvCache, KvStatistics, OutOfPages, PendingCopy, PrefixHit};
pub use pool::{PageError, PagePool, PoolExhausted, PoolStatistics, Released};
pub use prefix::{MediaFingerprint, PartialMatch, PrefixMatch, PrefixTree, Tail};
pub use sizing::{KvShape, KvSizeError};
