#[derive(Default)]
pub(crate) struct ActiveRooms;
