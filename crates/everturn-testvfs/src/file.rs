//! The file methods: what SQLite calls on an open file.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::sync::Arc;

use rusqlite::ffi::{self, sqlite3_file, sqlite3_int64, sqlite3_io_methods};

use crate::shared::Shared;

/// Promises of the device that are kept from SQLite, so that it relies on nothing but syncs.
const HIDDEN_PROMISES: c_int = ffi::SQLITE_IOCAP_ATOMIC
    | ffi::SQLITE_IOCAP_ATOMIC512
    | ffi::SQLITE_IOCAP_ATOMIC1K
    | ffi::SQLITE_IOCAP_ATOMIC2K
    | ffi::SQLITE_IOCAP_ATOMIC4K
    | ffi::SQLITE_IOCAP_ATOMIC8K
    | ffi::SQLITE_IOCAP_ATOMIC16K
    | ffi::SQLITE_IOCAP_ATOMIC32K
    | ffi::SQLITE_IOCAP_ATOMIC64K
    | ffi::SQLITE_IOCAP_BATCH_ATOMIC
    | ffi::SQLITE_IOCAP_SAFE_APPEND
    | ffi::SQLITE_IOCAP_SEQUENTIAL;

/// The kinds of files that the unix VFS syncs the directory for.
const JOURNALS: c_int = ffi::SQLITE_OPEN_MAIN_JOURNAL | ffi::SQLITE_OPEN_SUPER_JOURNAL | ffi::SQLITE_OPEN_WAL;

/// The beginning of the memory that SQLite sets aside per file. The underlying VFS's file object follows it.
#[repr(C)]
pub(crate) struct ShimFile {
    base: sqlite3_file,
    shared: &'static Shared,
    /// Where the file is recorded, or `None` if it is not covered.
    path: Option<Arc<Path>>,
    /// Whether the next sync will sync the directory, too.
    syncs_dir: Cell<bool>,
}

impl ShimFile {
    pub(crate) fn new(shared: &'static Shared, path: Option<Arc<Path>>, flags: c_int) -> Self {
        // The unix VFS goes by the flag, no matter whether the file is in fact new.
        let syncs_dir = flags & ffi::SQLITE_OPEN_CREATE != 0 && flags & JOURNALS != 0;
        ShimFile { base: sqlite3_file { pMethods: &METHODS }, shared, path, syncs_dir: Cell::new(syncs_dir) }
    }
}

/// Version 2 leaves out memory mapping, which would let reads go past this VFS.
static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(x_close),
    xRead: Some(x_read),
    xWrite: Some(x_write),
    xTruncate: Some(x_truncate),
    xSync: Some(x_sync),
    xFileSize: Some(inner_file_size),
    xLock: Some(inner_lock),
    xUnlock: Some(inner_unlock),
    xCheckReservedLock: Some(inner_check_reserved_lock),
    xFileControl: Some(x_file_control),
    xSectorSize: Some(inner_sector_size),
    xDeviceCharacteristics: Some(x_device_characteristics),
    xShmMap: Some(inner_shm_map),
    xShmLock: Some(inner_shm_lock),
    xShmBarrier: Some(x_shm_barrier),
    xShmUnmap: Some(inner_shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

/// The underlying VFS's part of a file object.
///
/// # Safety
///
/// `file` points to memory of the size that the VFS asked for in `szOsFile`.
pub(crate) unsafe fn inner_of(file: *mut sqlite3_file) -> *mut sqlite3_file {
    // SAFETY: `szOsFile` is the size of a `ShimFile` and the underlying file object together. `ShimFile` has the
    // alignment of a pointer, which is all that SQLite guarantees for file objects, so no padding is needed.
    unsafe { file.cast::<ShimFile>().add(1).cast() }
}

/// # Safety
///
/// `file` points to an open file of this VFS.
unsafe fn shim<'a>(file: *mut sqlite3_file) -> &'a ShimFile {
    // SAFETY: `x_open` put a `ShimFile` there before it gave `METHODS` to SQLite, and it stays there until
    // `x_close`.
    unsafe { &*file.cast::<ShimFile>() }
}

/// Defines functions that call a method of the underlying file and do nothing else.
macro_rules! forward {
    ($($name:ident => $method:ident($($arg:ident: $ty:ty),*) or $missing:expr;)*) => {$(
        unsafe extern "C" fn $name(file: *mut sqlite3_file, $($arg: $ty),*) -> c_int {
            // SAFETY: SQLite only calls methods of open files, whose underlying file is open, too. The arguments are
            // handed on as they are.
            unsafe {
                let inner = inner_of(file);
                match (*(*inner).pMethods).$method {
                    Some(method) => method(inner, $($arg),*),
                    None => $missing,
                }
            }
        }
    )*};
}

forward! {
    inner_close => xClose() or ffi::SQLITE_OK;
    inner_read => xRead(buffer: *mut c_void, amount: c_int, offset: sqlite3_int64) or ffi::SQLITE_IOERR_READ;
    inner_write => xWrite(buffer: *const c_void, amount: c_int, offset: sqlite3_int64) or ffi::SQLITE_IOERR_WRITE;
    inner_truncate => xTruncate(size: sqlite3_int64) or ffi::SQLITE_IOERR_TRUNCATE;
    inner_sync => xSync(flags: c_int) or ffi::SQLITE_IOERR_FSYNC;
    inner_file_size => xFileSize(size: *mut sqlite3_int64) or ffi::SQLITE_IOERR_FSTAT;
    inner_lock => xLock(level: c_int) or ffi::SQLITE_IOERR_LOCK;
    inner_unlock => xUnlock(level: c_int) or ffi::SQLITE_IOERR_UNLOCK;
    inner_check_reserved_lock => xCheckReservedLock(out: *mut c_int) or ffi::SQLITE_IOERR_CHECKRESERVEDLOCK;
    inner_file_control => xFileControl(op: c_int, arg: *mut c_void) or ffi::SQLITE_NOTFOUND;
    inner_sector_size => xSectorSize() or 0;
    inner_device_characteristics => xDeviceCharacteristics() or 0;
    inner_shm_map => xShmMap(region: c_int, size: c_int, extend: c_int, out: *mut *mut c_void) or ffi::SQLITE_IOERR_SHMMAP;
    inner_shm_lock => xShmLock(offset: c_int, n: c_int, flags: c_int) or ffi::SQLITE_IOERR_SHMLOCK;
    inner_shm_unmap => xShmUnmap(delete: c_int) or ffi::SQLITE_OK;
}

/// The size of the underlying file, if it can be told.
///
/// # Safety
///
/// `file` points to an open file of this VFS.
unsafe fn size_of_file(file: *mut sqlite3_file) -> Option<u64> {
    let mut size = 0;
    // SAFETY: as the caller promises; `size` outlives the call.
    let rc = unsafe { inner_file_size(file, &mut size) };
    (rc == ffi::SQLITE_OK).then_some(size as u64)
}

unsafe extern "C" fn x_close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: SQLite closes an open file once and does not touch it afterwards, so what `x_open` put there is moved
    // out exactly once.
    let (rc, shim) = unsafe { (inner_close(file), file.cast::<ShimFile>().read()) };
    if let Some(path) = &shim.path {
        shim.shared.closed(path);
    }
    rc
}

unsafe extern "C" fn x_write(
    file: *mut sqlite3_file,
    buffer: *const c_void,
    amount: c_int,
    offset: sqlite3_int64,
) -> c_int {
    // SAFETY: SQLite calls this on an open file.
    let shim = unsafe { shim(file) };
    // SAFETY: the arguments are handed on as they are.
    let io = || unsafe { inner_write(file, buffer, amount, offset) };
    match &shim.path {
        Some(path) => {
            // SAFETY: SQLite passes a buffer of `amount` readable bytes, which it leaves alone during the call.
            let data = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), amount as usize) };
            shim.shared.write(path, offset as u64, data, io)
        }
        None => io(),
    }
}

unsafe extern "C" fn x_read(
    file: *mut sqlite3_file,
    buffer: *mut c_void,
    amount: c_int,
    offset: sqlite3_int64,
) -> c_int {
    // SAFETY: SQLite calls this on an open file.
    let shim = unsafe { shim(file) };
    // SAFETY: the arguments are handed on as they are.
    let io = || unsafe { inner_read(file, buffer, amount, offset) };
    match &shim.path {
        Some(_) => shim.shared.read(io),
        None => io(),
    }
}

unsafe extern "C" fn x_truncate(file: *mut sqlite3_file, size: sqlite3_int64) -> c_int {
    // SAFETY: SQLite calls this on an open file.
    let shim = unsafe { shim(file) };
    // SAFETY: the arguments are handed on as they are.
    let io = || unsafe { inner_truncate(file, size) };
    match &shim.path {
        // SAFETY: the file is open until this call returns.
        Some(path) => shim.shared.resize(path, size as u64, || unsafe { size_of_file(file) }, io),
        None => io(),
    }
}

unsafe extern "C" fn x_sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: SQLite calls this on an open file.
    let shim = unsafe { shim(file) };
    // SAFETY: the arguments are handed on as they are.
    let io = || unsafe { inner_sync(file, flags) };
    match &shim.path {
        Some(path) => {
            let rc = shim.shared.sync(path, shim.syncs_dir.get(), io);
            if rc == ffi::SQLITE_OK {
                shim.syncs_dir.set(false);
            }
            rc
        }
        None => io(),
    }
}

unsafe extern "C" fn x_file_control(file: *mut sqlite3_file, op: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: SQLite calls this on an open file.
    let shim = unsafe { shim(file) };
    // SAFETY: the arguments are handed on as they are.
    let io = || unsafe { inner_file_control(file, op, arg) };
    match &shim.path {
        // The one file control that changes the file, if a chunk size is set.
        Some(path) if op == ffi::SQLITE_FCNTL_SIZE_HINT => {
            // SAFETY: the argument of a size hint is a pointer to a 64-bit integer.
            let wanted = unsafe { *arg.cast::<sqlite3_int64>() };
            // SAFETY: the file is open until this call returns.
            shim.shared.resize(path, wanted as u64, || unsafe { size_of_file(file) }, io)
        }
        _ => io(),
    }
}

unsafe extern "C" fn x_device_characteristics(file: *mut sqlite3_file) -> c_int {
    // SAFETY: SQLite calls this on an open file.
    let (shim, promises) = unsafe { (shim(file), inner_device_characteristics(file)) };
    let hidden = match shim.shared.powersafe_overwrite() {
        true => HIDDEN_PROMISES,
        false => HIDDEN_PROMISES | ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE,
    };
    promises & !hidden
}

unsafe extern "C" fn x_shm_barrier(file: *mut sqlite3_file) {
    // SAFETY: SQLite calls this on an open file, whose underlying file is open, too.
    unsafe {
        let inner = inner_of(file);
        if let Some(barrier) = (*(*inner).pMethods).xShmBarrier {
            barrier(inner);
        }
    }
}
