//! Tests of the store: what is found, what goes first, and that it is whole after a crash at any step.

use super::super::identity::tests::identity;
use super::super::memory_files::{MemoryFiles, Survives};
use super::*;
use std::time::Duration;

const FOLDER: &str = "/cache";
const PLENTY: u64 = 1 << 20;

fn at(second: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(second)
}

fn open(files: &MemoryFiles, bytes_max: u64) -> SnapshotStore {
    open_as(files, identity(), bytes_max)
}

fn open_as(files: &MemoryFiles, identity: SnapshotIdentity, bytes_max: u64) -> SnapshotStore {
    let opened = SnapshotStore::open(Arc::new(files.clone()), Path::new(FOLDER), identity, bytes_max, at(0));
    opened.expect("the folder is free")
}

fn tokens(from: u32, pages: u32) -> Vec<TokenId> {
    (from..from + 4 * pages).map(TokenId).collect()
}

/// The pages that belong to some tokens, of four tokens each: they differ wherever those do.
fn payload(tokens: &[TokenId]) -> Vec<u8> {
    tokens.chunks(4).flat_map(|page| (0..24).map(|byte| (page[0].0 * 7 + byte) as u8)).collect()
}

fn image(from: u32, pages: u32) -> Image {
    let tokens = tokens(from, pages);
    Image::new(identity(), tokens.clone(), payload(&tokens)).expect("whole pages")
}

fn image_bytes(pages: u32) -> u64 {
    image(1000, pages).to_bytes().len() as u64
}

/// The names of all files but that of the uses.
fn names(files: &MemoryFiles) -> Vec<String> {
    files.names().into_iter().filter(|name| name != HITS_FILE).collect()
}

/// Looks tokens up and sees that whatever is found is right; gives the number of pages found.
fn found(store: &SnapshotStore, tokens: &[TokenId]) -> usize {
    let Some(prefix) = store.find(tokens) else { return 0 };
    let bytes = store.load(&prefix, 0, at(100)).expect("what is found can be read");
    assert_eq!(bytes, payload(&tokens[..4 * prefix.pages()]));
    prefix.pages()
}

#[test]
fn a_prefix_is_found_again_after_the_store_was_opened_anew() {
    let files = MemoryFiles::default();
    let store = open(&files, PLENTY);
    assert_eq!(store.save(&image(0, 3), at(1)).ok(), Some(Saved::Stored));
    assert_eq!(found(&store, &tokens(0, 5)), 3);
    drop(store);
    let store = open(&files, PLENTY);
    assert_eq!(found(&store, &tokens(0, 2)), 2);
    assert_eq!(found(&store, &tokens(4, 2)), 0);
    let prefix = store.find(&tokens(0, 3)).expect("it is stored");
    let rest = store.load(&prefix, 2, at(2)).expect("it can be read");
    assert_eq!(rest, payload(&tokens(0, 3))[48..]);
}

#[test]
fn what_is_known_is_not_written_again_and_a_longer_image_takes_a_shorter_one_s_place() {
    let files = MemoryFiles::default();
    let store = open(&files, PLENTY);
    assert_eq!(store.save(&image(0, 2), at(1)).ok(), Some(Saved::Stored));
    assert_eq!(store.save(&image(0, 4), at(1)).ok(), Some(Saved::Stored));
    assert_eq!(store.save(&image(0, 2), at(1)).ok(), Some(Saved::Known));
    assert_eq!(store.save(&image(0, 4), at(1)).ok(), Some(Saved::Known));
    let short = Image::new(identity(), tokens(50, 1)[..3].to_vec(), vec![0; 24]).expect("a part of a page");
    assert_eq!(store.save(&short, at(1)).ok(), Some(Saved::TooShort));
    assert_eq!(names(&files).len(), 1);
    assert_eq!(store.statistics().bytes, image(0, 4).to_bytes().len() as u64);
}

#[test]
fn the_limit_holds_and_the_least_used_goes() {
    let files = MemoryFiles::default();
    let store = open(&files, 2 * image_bytes(3) + 20);
    store.save(&image(1000, 3), at(1)).expect("there is room");
    store.save(&image(2000, 3), at(1)).expect("there is room");
    assert_eq!(found(&store, &tokens(1000, 3)), 3);
    store.save(&image(3000, 3), at(2)).expect("room is made");
    assert_eq!(found(&store, &tokens(2000, 3)), 0, "the one without a hit went");
    assert_eq!((found(&store, &tokens(1000, 3)), found(&store, &tokens(3000, 3))), (3, 3));
    assert_eq!((names(&files).len(), store.statistics().evicted), (2, 1));
    assert_eq!(store.save(&image(4000, 99), at(3)).ok(), Some(Saved::TooLarge));
    drop(store);
    let store = open(&files, image_bytes(3) + 20);
    assert_eq!(names(&files).len(), 1, "a smaller limit holds from the start");
    assert!(store.statistics().bytes <= store.statistics().bytes_max);
}

#[test]
fn uses_count_after_the_store_was_opened_anew_and_nothing_depends_on_their_file() {
    let check = |damage: &dyn Fn(&MemoryFiles), kept: u32, evicted: u32| {
        let files = MemoryFiles::default();
        let store = open(&files, 2 * image_bytes(3) + 20);
        store.save(&image(1000, 3), at(1)).expect("there is room");
        store.save(&image(2000, 3), at(1)).expect("there is room");
        // Both were used last at the same moment, and one of them twice.
        assert_eq!([2000, 1000, 1000].map(|from| found(&store, &tokens(from, 3))), [3; 3]);
        drop(store);
        damage(&files);
        let store = open(&files, 2 * image_bytes(3) + 20);
        // The next image needs the room of one of them.
        assert_eq!(store.save(&image(3000, 3), at(101)).ok(), Some(Saved::Stored));
        assert_eq!([kept, evicted].map(|from| found(&store, &tokens(from, 3))), [3, 0]);
    };
    check(&|_| {}, 1000, 2000);
    // Where nothing is known of the uses, the files' order decides.
    let gone = |files: &MemoryFiles| files.remove(&Path::new(FOLDER).join(HITS_FILE)).expect("it is there");
    let first = first_by_name(1000, 2000);
    let other = 3000 - first;
    check(&gone, other, first);
    check(&|files| files.damage(HITS_FILE, 0), other, first);
    check(&|files| files.cut(HITS_FILE, 20), other, first);
}

/// Which of two images' files comes first.
fn first_by_name(one: u32, other: u32) -> u32 {
    let store = open(&MemoryFiles::default(), PLENTY);
    if store.name(&tokens(one, 3)) < store.name(&tokens(other, 3)) { one } else { other }
}

#[test]
fn damaged_cut_and_unfinished_files_are_removed_and_others_left_alone() {
    let files = MemoryFiles::default();
    let store = open(&files, PLENTY);
    store.save(&image(0, 2), at(1)).expect("there is room");
    drop(store);
    let bystander = Path::new(FOLDER).join("thesis.txt");
    files.put(&bystander, vec![1, 2, 3]);
    let before = names(&files).len();
    for (what, damage) in [
        ("cut", Box::new(|| files.cut(NAME_END, 100)) as Box<dyn Fn()>),
        ("cut to nothing", Box::new(|| files.cut(NAME_END, 0))),
        ("header", Box::new(|| files.damage(NAME_END, 60))),
        ("unfinished", Box::new(|| files.put(&Path::new(FOLDER).join("x.lavakv-part"), vec![7; 50]))),
    ] {
        damage();
        let store = open(&files, PLENTY);
        let left = names(&files);
        assert!(left.len() <= before, "{what}: {left:?}");
        assert!(left.contains(&"thesis.txt".to_owned()), "{what}: {left:?}");
        store.save(&image(0, 2), at(1)).expect("there is room");
        assert_eq!(found(&store, &tokens(0, 2)), 2, "{what}");
    }
}

#[test]
fn damage_found_while_reading_removes_the_image_and_says_where() {
    let files = MemoryFiles::default();
    let store = open(&files, PLENTY);
    store.save(&image(0, 2), at(1)).expect("there is room");
    files.damage(NAME_END, 0);
    let first_page = store.find(&tokens(0, 1)).expect("it is stored");
    assert!(store.load(&first_page, 0, at(2)).is_ok(), "the first page is whole");
    let prefix = store.find(&tokens(0, 2)).expect("it is stored");
    let error = store.load(&prefix, 0, at(2)).expect_err("the second page is damaged");
    assert!(error.to_string().contains("page 1"), "{error}");
    assert!(store.find(&tokens(0, 2)).is_none());
    assert!(matches!(store.load(&prefix, 0, at(2)), Err(LoadError::Gone)));
    assert_eq!((names(&files).len(), store.statistics().damaged), (0, 1));

    store.save(&image(0, 2), at(3)).expect("there is room");
    files.cut(NAME_END, 60);
    let prefix = store.find(&tokens(0, 2)).expect("it is stored");
    assert!(matches!(store.load(&prefix, 0, at(4)), Err(LoadError::Shortened { .. })));
    assert_eq!((names(&files).len(), store.statistics().damaged), (0, 2));
}

#[test]
fn images_of_other_executors_are_never_found_and_go_first() {
    let files = MemoryFiles::default();
    let other = SnapshotIdentity { kv_type: "f32".to_owned(), ..identity() };
    let store = open_as(&files, other, PLENTY);
    let error = store.save(&image(0, 2), at(1)).expect_err("it is of another executor");
    assert!(matches!(error, StoreError::Incompatible(_)), "{error}");
    drop(store);
    open(&files, PLENTY).save(&image(0, 2), at(1)).expect("there is room");
    let other = SnapshotIdentity { model: Digest(99), ..identity() };
    let bytes = image_bytes(2);
    let store = open_as(&files, other.clone(), bytes + 50);
    assert_eq!(found(&store, &tokens(0, 2)), 0);
    let theirs = Image::new(other, tokens(0, 2), payload(&tokens(0, 2))).expect("whole pages");
    assert_eq!(store.save(&theirs, at(2)).ok(), Some(Saved::Stored));
    assert_eq!((found(&store, &tokens(0, 2)), store.statistics().evicted), (2, 1));
}

#[test]
fn a_folder_has_one_owner() {
    let files = MemoryFiles::default();
    let store = open(&files, PLENTY);
    let opened = SnapshotStore::open(Arc::new(files.clone()), Path::new(FOLDER), identity(), 1, at(0));
    assert!(matches!(opened, Err(StoreError::InUse { .. })));
    drop(store);
    drop(open(&files, PLENTY));
}

#[test]
fn a_full_disk_refuses_the_image_and_leaves_the_rest() {
    let files = MemoryFiles::default();
    let store = open(&files, PLENTY);
    store.save(&image(0, 2), at(1)).expect("there is room");
    for room in 0..image_bytes(3) as usize {
        files.full_after(Some(room));
        let error = store.save(&image(1000, 3), at(2)).expect_err("the disk is full");
        let full =
            matches!(&error, StoreError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull);
        assert!(full, "{error}");
        assert_eq!((found(&store, &tokens(0, 2)), found(&store, &tokens(1000, 3))), (2, 0));
        assert_eq!(names(&files).len(), 1, "nothing is left of it");
    }
    files.full_after(None);
    assert_eq!(store.save(&image(1000, 3), at(3)).ok(), Some(Saved::Stored));
}

/// Saves, evicts and replaces with the plug pulled after `steps` steps; false where it was not reached.
fn run_into_crash(files: &MemoryFiles, steps: usize) -> bool {
    let store = open(files, 2 * image_bytes(2) + image_bytes(3));
    store.save(&image(1000, 2), at(1)).expect("the plug is in");
    store.save(&image(2000, 2), at(1)).expect("the plug is in");
    let before = files.steps();
    files.pull_plug_after(steps);
    let prefix = store.find(&tokens(2000, 2)).expect("it is stored");
    // Each of these fails once the plug is pulled.
    let _ = store.load(&prefix, 0, at(2));
    let _ = store.save(&image(3000, 3), at(2));
    let _ = store.save(&image(1000, 3), at(3));
    let _ = store.save(&image(4000, 4), at(4));
    files.steps() - before > steps
}

#[test]
fn a_crash_at_any_step_leaves_a_valid_store() {
    let mut steps = 0;
    loop {
        let files = MemoryFiles::default();
        let crashed = run_into_crash(&files, steps);
        for survives in [Survives::Everything, Survives::OnlySynced, Survives::NamesOnly] {
            let disk = files.after_crash(survives);
            let store = open(&disk, PLENTY);
            for (from, pages) in [(1000, 3), (2000, 2), (3000, 3), (4000, 4)] {
                let known = found(&store, &tokens(from, pages));
                assert!(known <= pages as usize, "step {steps}, {survives:?}");
            }
            let unfinished = names(&disk).into_iter().filter(|name| name.ends_with(UNFINISHED_END)).count();
            assert_eq!(unfinished, 0, "step {steps}, {survives:?}");
            assert_eq!(names(&disk).len(), store.statistics().images, "step {steps}, {survives:?}");
            if steps == 0 {
                let both = (found(&store, &tokens(1000, 2)), found(&store, &tokens(2000, 2)));
                assert_eq!(both, (2, 2), "what was saved before is there, {survives:?}");
            }
            store.save(&image(9000, 2), at(9)).expect("the store goes on");
            assert_eq!(found(&store, &tokens(9000, 2)), 2);
        }
        if !crashed {
            break;
        }
        steps += 1;
    }
    assert!(steps > 15, "only {steps} steps were there to crash at");
}
