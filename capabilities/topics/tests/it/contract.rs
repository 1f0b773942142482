//! Each driver keeps the contract, and so does one with faults while it has none.

mod memory {
    use std::sync::Arc;

    use tidings_topics::MemoryDriver;
    use tidings_topics::contract::Nodes;

    use crate::support::local;

    async fn memory() -> Nodes {
        Nodes::one(Arc::new(MemoryDriver::new(local("scope"))))
    }

    tidings_topics::driver_contract!(memory);
}

mod faulty {
    use std::sync::Arc;

    use tidings_topics::MemoryDriver;
    use tidings_topics::contract::{Faulty, Nodes};

    use crate::support::local;

    async fn faulty() -> Nodes {
        Nodes::one(Arc::new(Faulty::new(Arc::new(MemoryDriver::new(local(""))))))
    }

    tidings_topics::driver_contract!(faulty);
}
