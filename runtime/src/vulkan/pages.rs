//! Pages of the KV cache out of the device's memory and into it again.
//!
//! An exported page holds, layer by layer, its keys and then its values, each in the layout that the pack's
//! kernels read. Everything goes through recorded copies, so that it does not matter where the cache lives; a group's members share it, so one of them copies for all.

use super::buffers::{Home, read, write};
use super::error::VulkanError;
use super::forward::Forward;
use super::recorder::Recorder;
use crate::ids::PageId;
use vulkano::buffer::Subbuffer;

/// Which way a page's bytes go.
#[derive(Clone, Copy)]
enum Way {
    Out,
    In,
}

impl Forward {
    /// Bytes of one exported page: keys and values of all layers.
    pub fn page_bytes(&self) -> usize {
        2 * self.layers.len() * self.shape.kv_page_bytes
    }

    /// The content of a page, [`Forward::page_bytes`] bytes.
    ///
    /// # Errors
    /// The device's refusal or loss.
    ///
    /// # Panics
    /// When the pool has no such page: the caller checks.
    pub fn read_page(&self, page: PageId) -> Result<Vec<u8>, VulkanError> {
        let staging =
            self.group.first().buffer("a page on its way out", self.page_bytes(), Home::Readback)?;
        let recorder = self.record_page(page, &staging, Way::Out)?;
        self.group.first().submit(recorder)?;
        read(&staging, self.page_bytes())
    }

    /// Replaces the content of a page by [`Forward::page_bytes`] bytes that [`Forward::read_page`] gave.
    ///
    /// # Errors
    /// The device's refusal or loss; the page's content is garbage then.
    ///
    /// # Panics
    /// When the pool has no such page, or the bytes are not a page's: the caller checks both.
    pub fn write_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), VulkanError> {
        assert_eq!(bytes.len(), self.page_bytes(), "the bytes of a page");
        let staging = self.group.first().buffer("a page on its way in", bytes.len(), Home::Upload)?;
        write(&staging, bytes)?;
        let recorder = self.record_page(page, &staging, Way::In)?;
        self.group.first().submit(recorder).map(drop)
    }

    fn record_page(
        &self,
        page: PageId,
        staging: &Subbuffer<[u8]>,
        way: Way,
    ) -> Result<Recorder, VulkanError> {
        assert!(page.index() < self.shape.pages, "page {page} of a pool of {}", self.shape.pages);
        let bytes = self.shape.kv_page_bytes;
        let of_page = |index: usize| index * bytes..(index + 1) * bytes;
        let mut recorder = self.group.first().record()?;
        let parts = self.layers.iter().flat_map(|layer| [&layer.keys, &layer.values]);
        for (part, region) in parts.enumerate() {
            let cached = region.slice(of_page(page.index()));
            let staged = of_page(part);
            let staged = staging.clone().slice(staged.start as u64..staged.end as u64);
            match way {
                Way::Out => recorder.copy(cached, staged),
                Way::In => recorder.copy(staged, cached),
            }
        }
        Ok(recorder)
    }
}
