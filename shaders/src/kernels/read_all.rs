//! Twin of `read_all.comp`: what each lane keeps of the words of a run.

/// The word that each of `lanes` lanes keeps of a workgroup's run, a whole number of texels of four words for each.
///
/// # Panics
/// When the run is no such number.
pub fn kept(run: &[u32], lanes: usize) -> Vec<u32> {
    assert!(run.len().is_multiple_of(lanes * 4), "{} words for {lanes} lanes", run.len());
    let words = |lane: usize| run.chunks_exact(4).skip(lane).step_by(lanes).flatten();
    (0..lanes).map(|lane| words(lane).fold(0, |kept, word| kept ^ word)).collect()
}
