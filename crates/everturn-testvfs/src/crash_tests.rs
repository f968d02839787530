//! The power cut simulation on hand-written traces.

use super::*;

fn path(name: &str) -> Arc<Path> {
    Path::new("/d").join(name).into()
}

fn create(name: &str) -> Op {
    Op::Create { file: path(name) }
}

fn write_op(name: &str, offset: u64, data: &[u8]) -> Op {
    Op::Write { file: path(name), offset, data: data.into() }
}

fn truncate(name: &str, size: u64) -> Op {
    Op::Truncate { file: path(name), size }
}

fn sync(name: &str) -> Op {
    Op::Sync { file: path(name), dir_synced: false }
}

fn delete(name: &str, dir_synced: bool) -> Op {
    Op::Delete { file: path(name), dir_synced }
}

fn trace(base: &[(&str, &[u8])], ops: Vec<Op>) -> Trace {
    let base = base.iter().map(|(name, bytes)| (path(name), (*bytes).into())).collect();
    Trace { base, ops }
}

/// All the different contents that a file has at the end, over many seeds.
fn outcomes(trace: &Trace, name: &str, loss: fn(u64) -> Loss) -> Vec<Option<Vec<u8>>> {
    let disks = (0..400).map(|seed| trace.crash_at(trace.len(), loss(seed)));
    let mut seen: Vec<_> = disks.map(|disk| disk.get(path(name)).map(<[u8]>::to_vec)).collect();
    seen.sort();
    seen.dedup();
    seen
}

fn keep(seed: u64) -> Loss {
    Loss::KeepRandom { seed }
}

fn torn(seed: u64) -> Loss {
    Loss::Torn { seed }
}

#[test]
fn synced_changes_survive_whatever_else_is_lost() {
    let ops =
        vec![create("f"), write_op("f", 0, b"abcdef"), truncate("f", 4), sync("f"), write_op("g", 0, b"never created")];
    let trace = trace(&[], ops);
    for loss in [Loss::DropUnsynced, keep(1), keep(2), torn(1), torn(2)] {
        let disk = trace.crash_at(trace.len(), loss);
        assert_eq!(disk.files().collect::<Vec<_>>(), [(&*path("f"), &b"abcd"[..])]);
    }
}

#[test]
fn what_was_forgotten_no_later_sync_brings_back() {
    let forget = Op::Forget { file: path("f") };
    let ops = vec![write_op("f", 1, b"XYZ"), forget, write_op("f", 0, b"A"), sync("f"), write_op("f", 0, b"B")];
    let trace = trace(&[("f", b"abc")], ops);
    let disk = trace.crash_at(trace.len(), Loss::DropUnsynced);
    assert_eq!(disk.get(path("f")), Some(&b"Abc\0"[..]));
}

#[test]
fn unsynced_changes_are_dropped() {
    let ops = vec![write_op("f", 1, b"X"), truncate("f", 1), create("g"), delete("h", false)];
    let trace = trace(&[("f", b"abc"), ("h", b"old")], ops);
    let disk = trace.crash_at(trace.len(), Loss::DropUnsynced);
    assert_eq!(disk.get(path("f")), Some(&b"abc"[..]));
    assert_eq!(disk.get(path("g")), None);
    assert_eq!(disk.get(path("h")), Some(&b"old"[..]));
}

#[test]
fn unsynced_changes_survive_in_every_combination() {
    let trace = trace(&[("f", b"ab")], vec![write_op("f", 1, b"XY"), truncate("f", 1)]);
    let expected = [&b"a"[..], b"aXY", b"ab"].map(|bytes| Some(bytes.to_vec()));
    assert_eq!(outcomes(&trace, "f", keep), expected);
}

#[test]
fn holes_read_as_zeroes() {
    let trace = trace(&[("f", b"a")], vec![write_op("f", 3, b"d"), sync("f")]);
    assert_eq!(outcomes(&trace, "f", keep), [Some(b"a\0\0d".to_vec())]);
}

#[test]
fn a_name_is_bound_to_its_past_present_or_nothing() {
    let ops = vec![delete("f", false), create("f"), write_op("f", 0, b"new")];
    let trace = trace(&[("f", b"old")], ops);
    let expected = [None, Some(b"".to_vec()), Some(b"new".to_vec()), Some(b"old".to_vec())];
    assert_eq!(outcomes(&trace, "f", keep), expected);
}

#[test]
fn syncing_the_directory_settles_all_names_in_it() {
    let trace = trace(&[("f", b"old")], vec![create("g"), delete("f", true)]);
    let disk = trace.crash_at(trace.len(), Loss::DropUnsynced);
    assert_eq!(disk.files().collect::<Vec<_>>(), [(&*path("g"), &b""[..])]);

    let sync = Op::Sync { file: path("h"), dir_synced: true };
    let disk = Trace { ops: vec![create("g"), delete("f", false), create("h"), sync], ..trace };
    let disk = disk.crash_at(disk.len(), Loss::DropUnsynced);
    assert_eq!(disk.files().map(|(path, _)| path).collect::<Vec<_>>(), [&*path("g"), &*path("h")]);
}

#[test]
fn torn_writes_keep_whole_sectors() {
    let size = 4 * SECTOR as usize;
    let old = vec![b'o'; size];
    // Starts and ends in the middle of a sector.
    let trace = trace(&[("f", &old)], vec![write_op("f", 100, &vec![b'n'; size - 200])]);
    let seen = outcomes(&trace, "f", torn);
    assert_eq!(seen.len(), 16, "every subset of four sectors occurs");
    for bytes in seen.into_iter().flatten() {
        assert_eq!(bytes.len(), size);
        for (number, sector) in bytes.chunks(SECTOR as usize).enumerate() {
            let written = match number {
                0 => &sector[100..],
                3 => &sector[..sector.len() - 100],
                _ => sector,
            };
            assert!(written.iter().all(|byte| *byte == written[0]));
        }
        assert!(bytes[..100].iter().chain(&bytes[size - 100..]).all(|byte| *byte == b'o'));
    }
}

#[test]
fn a_lost_write_may_still_grow_the_file() {
    let trace = trace(&[("f", b"a")], vec![write_op("f", 1, b"bc")]);
    assert_eq!(outcomes(&trace, "f", keep), [b"a".to_vec(), b"abc".to_vec()].map(Some));
    let expected = [b"a".to_vec(), b"a\0\0".to_vec(), b"abc".to_vec()].map(Some);
    assert_eq!(outcomes(&trace, "f", torn), expected);
}

#[test]
fn the_same_arguments_give_the_same_disk() {
    let ops = (0..50).map(|i| write_op("f", i * 700, &[i as u8; 900])).collect();
    let trace = trace(&[], [vec![create("f")], ops].concat());
    for seed in 0..20 {
        assert_eq!(trace.crash_at(40, torn(seed)), trace.crash_at(40, torn(seed)));
    }
}

#[test]
fn sync_points_and_marks() {
    let mark = |label: &str| Op::Mark(label.to_owned());
    let ops = vec![create("f"), sync("f"), mark("one"), sync("f"), sync("f"), mark("two")];
    let trace = trace(&[], ops);
    assert_eq!(trace.sync_points().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!(trace.marks_before(2), [""; 0]);
    assert_eq!(trace.marks_before(3), ["one"]);
    assert_eq!(trace.marks_before(6), ["one", "two"]);
}

#[test]
fn files_are_never_mixed_with_those_of_another_disk() {
    let dir = tempfile::tempdir().unwrap();
    let trace = trace(&[("f", b"a")], Vec::new());
    let disk = trace.crash_at(0, Loss::DropUnsynced);
    disk.write_into(dir.path()).unwrap();
    assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"a");
    let again = disk.write_into(dir.path()).unwrap_err();
    assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
}
