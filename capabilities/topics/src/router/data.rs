//! Data of connections, which handlers change while policies read it.

use std::sync::{Arc, Mutex, PoisonError};

/// The data of a connection. Clones are the same data.
#[derive(Debug, Default)]
pub struct Data<D>(Arc<Mutex<Arc<D>>>);

impl<D> Data<D> {
    /// Creates data.
    pub fn new(data: D) -> Self {
        Self(Arc::new(Mutex::new(Arc::new(data))))
    }

    /// The data as it is now.
    pub fn get(&self) -> Arc<D> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the data. Whoever has read it before keeps what it has read.
    pub fn assign(&self, change: impl FnOnce(&mut D))
    where
        D: Clone,
    {
        let mut data = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut data));
    }
}

impl<D> Clone for Data<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
