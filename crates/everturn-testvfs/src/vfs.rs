//! The VFS methods: what SQLite calls to open, delete and find files.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use rusqlite::ffi::{self, sqlite3_file, sqlite3_int64, sqlite3_vfs};

use crate::file::{ShimFile, inner_of};
use crate::shared::Shared;

/// The kinds of files that hold a database together, as opposed to temporary ones.
const COVERED: c_int =
    ffi::SQLITE_OPEN_MAIN_DB | ffi::SQLITE_OPEN_MAIN_JOURNAL | ffi::SQLITE_OPEN_SUPER_JOURNAL | ffi::SQLITE_OPEN_WAL;

/// What the methods of a VFS find at its `pAppData`.
struct AppData {
    inner: *mut sqlite3_vfs,
    shared: &'static Shared,
}

pub(crate) fn register(name: &str, shared: &'static Shared) {
    assert!(!name.is_empty(), "a VFS needs a name");
    let c_name = CString::new(name).expect("the name of a VFS holds no NUL byte");

    // SAFETY: both calls initialise SQLite if need be, and the names are NUL-terminated.
    let (taken, inner) = unsafe { (ffi::sqlite3_vfs_find(c_name.as_ptr()), ffi::sqlite3_vfs_find(ptr::null())) };
    assert!(taken.is_null(), "SQLite has a VFS named {name:?} already");
    assert!(!inner.is_null(), "SQLite has no default VFS");

    // SAFETY: SQLite's built-in VFSes are never freed.
    let (inner_size, max_path) = unsafe { ((*inner).szOsFile, (*inner).mxPathname) };
    let vfs = sqlite3_vfs {
        // Version 3 would add system call overrides, which reach the underlying VFS under its own name anyway.
        iVersion: 2,
        szOsFile: size_of::<ShimFile>() as c_int + inner_size,
        mxPathname: max_path,
        pNext: ptr::null_mut(),
        zName: c_name.into_raw(),
        pAppData: Box::into_raw(Box::new(AppData { inner, shared })).cast(),
        xOpen: Some(x_open),
        xDelete: Some(x_delete),
        xAccess: Some(inner_access),
        xFullPathname: Some(inner_full_pathname),
        xDlOpen: Some(x_dl_open),
        xDlError: Some(x_dl_error),
        xDlSym: Some(x_dl_sym),
        xDlClose: Some(x_dl_close),
        xRandomness: Some(inner_randomness),
        xSleep: Some(inner_sleep),
        xCurrentTime: Some(inner_current_time),
        xGetLastError: Some(inner_get_last_error),
        xCurrentTimeInt64: Some(inner_current_time_int64),
        xSetSystemCall: None,
        xGetSystemCall: None,
        xNextSystemCall: None,
    };
    // SAFETY: the VFS, its name and its data are leaked, so they are valid for ever.
    let rc = unsafe { ffi::sqlite3_vfs_register(Box::into_raw(Box::new(vfs)), 0) };
    assert_eq!(rc, ffi::SQLITE_OK, "SQLite refuses to register a VFS");
}

/// # Safety
///
/// `vfs` was made by [`register`].
unsafe fn app_data<'a>(vfs: *mut sqlite3_vfs) -> &'a AppData {
    // SAFETY: `register` put it there, and it is neither changed nor freed.
    unsafe { &*(*vfs).pAppData.cast::<AppData>() }
}

/// Defines functions that call a method of the underlying VFS and do nothing else.
macro_rules! forward {
    ($($name:ident => $method:ident($($arg:ident: $ty:ty),*) or $missing:expr;)*) => {$(
        unsafe extern "C" fn $name(vfs: *mut sqlite3_vfs, $($arg: $ty),*) -> c_int {
            // SAFETY: SQLite passes the VFS that the method was registered with. The arguments are handed on as they
            // are.
            unsafe {
                let inner = app_data(vfs).inner;
                match (*inner).$method {
                    Some(method) => method(inner, $($arg),*),
                    None => $missing,
                }
            }
        }
    )*};
}

forward! {
    inner_open => xOpen(name: *const c_char, file: *mut sqlite3_file, flags: c_int, out_flags: *mut c_int)
        or ffi::SQLITE_CANTOPEN;
    inner_delete => xDelete(name: *const c_char, sync_dir: c_int) or ffi::SQLITE_IOERR_DELETE;
    inner_access => xAccess(name: *const c_char, flags: c_int, out: *mut c_int) or ffi::SQLITE_IOERR_ACCESS;
    inner_full_pathname => xFullPathname(name: *const c_char, size: c_int, out: *mut c_char) or ffi::SQLITE_CANTOPEN;
    inner_randomness => xRandomness(size: c_int, out: *mut c_char) or 0;
    inner_sleep => xSleep(microseconds: c_int) or 0;
    inner_current_time => xCurrentTime(out: *mut f64) or ffi::SQLITE_ERROR;
    inner_get_last_error => xGetLastError(size: c_int, out: *mut c_char) or 0;
    inner_current_time_int64 => xCurrentTimeInt64(out: *mut sqlite3_int64) or ffi::SQLITE_ERROR;
}

/// # Safety
///
/// `name` is NUL-terminated.
unsafe fn path_of(name: *const c_char) -> Arc<Path> {
    // SAFETY: as the caller promises.
    let name = unsafe { CStr::from_ptr(name) };
    Path::new(OsStr::from_bytes(name.to_bytes())).into()
}

unsafe extern "C" fn x_open(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite passes the VFS that this method was registered with, and memory of `szOsFile` bytes.
    let (data, inner_file) = unsafe { (app_data(vfs), inner_of(file)) };
    // SAFETY: both point into that memory. Null means "do not close" should this call fail.
    unsafe {
        (*file).pMethods = ptr::null();
        (*inner_file).pMethods = ptr::null();
    }
    // SAFETY: a name that is not null is NUL-terminated.
    let path = (!name.is_null() && flags & COVERED != 0).then(|| unsafe { path_of(name) });
    let io = || {
        // SAFETY: the arguments are handed on as they are; `name` in particular has to be the very same pointer, as
        // URI parameters are found behind it. If a failed open leaves methods behind, closing is up to the caller.
        unsafe {
            let rc = inner_open(vfs, name, inner_file, flags, out_flags);
            let methods = (*inner_file).pMethods;
            if rc != ffi::SQLITE_OK
                && !methods.is_null()
                && let Some(close) = (*methods).xClose
            {
                close(inner_file);
            }
            rc
        }
    };
    let rc = match &path {
        Some(path) => data.shared.open(path, io),
        None => io(),
    };
    if rc == ffi::SQLITE_OK {
        // SAFETY: the memory is large enough, aligned for pointers, and holds nothing that would need to be dropped.
        unsafe { file.cast::<ShimFile>().write(ShimFile::new(data.shared, path, flags)) };
    }
    rc
}

unsafe extern "C" fn x_delete(vfs: *mut sqlite3_vfs, name: *const c_char, sync_dir: c_int) -> c_int {
    // SAFETY: SQLite passes the VFS that this method was registered with and a NUL-terminated name.
    let (data, path) = unsafe { (app_data(vfs), path_of(name)) };
    // SAFETY: the arguments are handed on as they are.
    let io = || unsafe { inner_delete(vfs, name, sync_dir) };
    data.shared.delete(&path, sync_dir != 0, io)
}

unsafe extern "C" fn x_dl_open(vfs: *mut sqlite3_vfs, name: *const c_char) -> *mut c_void {
    // SAFETY: SQLite passes the VFS that this method was registered with; the rest is handed on as it is.
    unsafe {
        let inner = app_data(vfs).inner;
        (*inner).xDlOpen.map_or(ptr::null_mut(), |method| method(inner, name))
    }
}

unsafe extern "C" fn x_dl_error(vfs: *mut sqlite3_vfs, size: c_int, out: *mut c_char) {
    // SAFETY: as in `x_dl_open`.
    unsafe {
        let inner = app_data(vfs).inner;
        if let Some(method) = (*inner).xDlError {
            method(inner, size, out);
        }
    }
}

/// SQLite's own declaration of what a symbol is; it is cast to its true type by whoever asked for it.
type Symbol = Option<unsafe extern "C" fn(*mut sqlite3_vfs, *mut c_void, *const c_char)>;

unsafe extern "C" fn x_dl_sym(vfs: *mut sqlite3_vfs, library: *mut c_void, name: *const c_char) -> Symbol {
    // SAFETY: as in `x_dl_open`.
    unsafe {
        let inner = app_data(vfs).inner;
        (*inner).xDlSym.and_then(|method| method(inner, library, name))
    }
}

unsafe extern "C" fn x_dl_close(vfs: *mut sqlite3_vfs, library: *mut c_void) {
    // SAFETY: as in `x_dl_open`.
    unsafe {
        let inner = app_data(vfs).inner;
        if let Some(method) = (*inner).xDlClose {
            method(inner, library);
        }
    }
}
