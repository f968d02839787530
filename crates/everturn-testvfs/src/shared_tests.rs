//! What cannot be shown through SQLite: the order of events in the middle of an operation.

use std::sync::mpsc;
use std::time::Duration;

use super::*;

#[test]
fn recording_waits_for_writes_that_are_under_way() {
    let shared = &Shared::default();
    let path: Arc<Path> = Path::new("/d/f").into();
    let (entered, has_entered) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let (started, has_started) = mpsc::channel();
    std::thread::scope(|scope| {
        let path = &path;
        scope.spawn(move || {
            shared.write(path, 0, b"early", || {
                entered.send(()).unwrap();
                released.recv().unwrap();
                ffi::SQLITE_OK
            })
        });
        has_entered.recv().unwrap();
        scope.spawn(move || {
            shared.start_recording();
            started.send(()).unwrap();
        });
        let early = has_started.recv_timeout(Duration::from_millis(100));
        release.send(()).unwrap();
        assert!(early.is_err(), "a write is neither in the base image nor in the trace");
        has_started.recv().unwrap();
    });
    shared.write(&path, 0, b"late", || ffi::SQLITE_OK);
    let data: Arc<[u8]> = b"late"[..].into();
    assert_eq!(shared.trace().ops(), [Op::Write { file: path, offset: 0, data }]);
}

#[test]
fn operations_do_not_overlap_while_recording() {
    let shared = &Shared::default();
    shared.start_recording();
    let path: Arc<Path> = Path::new("/d/f").into();
    let busy = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    shared.sync(&path, false, || {
                        assert!(!busy.swap(true, Ordering::SeqCst));
                        std::thread::yield_now();
                        busy.store(false, Ordering::SeqCst);
                        ffi::SQLITE_OK
                    });
                }
            });
        }
    });
    assert_eq!(shared.trace().len(), 200);
    assert_eq!(shared.counters.syncs(), 200);
}
