//! Locks and atomics of rings and bundles: those of the standard library, or those of a scheduler that tries
//! interleavings (`make test-interleavings`).

#[cfg(not(all(test, shuttle)))]
pub(super) use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

#[cfg(all(test, shuttle))]
pub(super) use shuttle::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};
