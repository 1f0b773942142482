//! What an operator does with a store that no server has open.
