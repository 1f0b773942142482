use tidings_model::ProjectId;

use super::*;

const SESSION: LogId = LogId::new(1);

/// The session hears a source in envelopes, from this second on.
fn hear(table: &mut Table, source: u64, second: u64, unreadable: Option<u64>) -> Result<(), Declined> {
    let time = |second: u64| Timestamp::from_millis(second * 1000);
    let change = Change::Subscribe {
        session: SESSION,
        session_is: if table.session(SESSION).is_some() { SessionIs::Existing } else { SessionIs::New },
        source: LogId::new(source),
        id: StreamId::parse(&format!("s{source}")).expect("a valid id"),
        at: time(second),
        since: Position::ZERO,
        envelope: Some(true),
        unreadable: unreadable.map(time),
    };
    table.validate(&change)?;
    table.apply(change);
    Ok(())
}

fn leave(table: &mut Table, source: u64) {
    table.apply(Change::Unsubscribe { session: SESSION, source: LogId::new(source) });
}

fn knows(table: &Table, source: u64) -> bool {
    table.session(SESSION).is_some_and(|session| session.of(LogId::new(source)).is_some())
}

#[test]
fn what_a_session_has_left_is_known_until_nobody_can_read_it() {
    let mut table = Table::default();
    for source in [10, 11] {
        hear(&mut table, source, 100, None).expect("there is room");
    }
    leave(&mut table, 10);
    hear(&mut table, 12, 200, Some(150)).expect("there is room");
    assert!(knows(&table, 10), "it may have got something until second 200");
    hear(&mut table, 12, 300, Some(199)).expect("it hears it");
    assert!(knows(&table, 10));
    hear(&mut table, 12, 301, Some(200)).expect("it hears it");
    assert!(!knows(&table, 10));
    assert!(knows(&table, 11), "it still hears that");
}

#[test]
fn what_a_session_has_left_takes_no_room_from_what_it_hears() {
    let mut table = Table::default();
    let most = limits::SOURCES_PER_SESSION as u64;
    let others = 10_000..10_000 + most;
    for source in others.clone() {
        hear(&mut table, source, source, None).expect("there is room");
    }
    assert_eq!(hear(&mut table, 1000, 20_000, None), Err(Declined::TooManySources));
    assert_eq!(hear(&mut table, 10_000, 20_000, None), Ok(()), "it hears that already");
    for source in others.clone() {
        leave(&mut table, source);
    }
    hear(&mut table, 1000, 20_000, None).expect("there is room");
    assert!(others.clone().all(|source| knows(&table, source)));
    leave(&mut table, 1000);
    // Nothing that can be read is forgotten: when too much is to be known, there is no room for more.
    let further = 1001..1001 + limits::LEFT_PER_SESSION as u64 - 1;
    for source in further.clone() {
        hear(&mut table, source, 20_000, None).expect("there is room");
        leave(&mut table, source);
    }
    assert_eq!(hear(&mut table, 5000, 20_000, None), Err(Declined::TooManyLeft));
    assert!(others.clone().chain([1000]).chain(further).all(|source| knows(&table, source)));
    assert_eq!(hear(&mut table, 10_000, 20_000, None), Ok(()), "it knows that one");
    hear(&mut table, 5000, 30_000, Some(20_000)).expect("what it left cannot be read any more");
}

fn name(source: u64) -> StreamKey {
    let id = StreamId::parse(&format!("s{source}")).expect("a valid id");
    StreamKey { project: ProjectId::default_project(), id }
}

#[test]
fn a_source_ends_for_all_at_once_and_the_rows_of_its_subscribers_change_a_few_at_a_time() {
    const SOURCE: LogId = LogId::new(10);
    let sessions = (1000..2000).map(LogId::new);
    let mut table = Table::default();
    for session in sessions.clone() {
        let change = Change::Subscribe {
            session,
            session_is: SessionIs::New,
            source: SOURCE,
            id: name(10).id,
            at: Timestamp::from_millis(1000),
            since: Position::ZERO,
            // Of these it is kept how their records are shown.
            envelope: Some(session.get() % 2 == 0),
            unreadable: None,
        };
        table.validate(&change).expect("there is room");
        table.apply(change);
    }
    let cause = tidings_streams::table::Cause::Deleted;
    table.on_base_change(&tidings_streams::Change::Remove { key: name(10), log: SOURCE, cause });
    assert!(table.attached() >= 1000 - limits::DETACHED_PER_CHANGE, "{}", table.attached());
    assert!(table.source(SOURCE).is_none());
    let hears = |table: &Table, session| {
        let row = table.session(session).expect("there");
        let shown = row.of(SOURCE).is_some_and(|row| row.envelope_at(Position::new(1)));
        (row.subscriptions().count(), shown)
    };
    let as_it_was = |table: &Table| {
        for session in sessions.clone() {
            assert_eq!(hears(table, session), (0, session.get() % 2 == 0), "{session}");
        }
    };
    as_it_was(&table);
    // What is written down meanwhile has nothing of it.
    let mut again = Table::default();
    table.written().into_iter().for_each(|change| again.apply(change));
    assert_eq!(again.attached(), 0);
    as_it_was(&again);
    // Nor has what is made of the rows as they are.
    let mut raw = Table::default();
    for (&session, row) in table.sessions.iter() {
        raw.apply(Change::RestoreSession { session, subscriptions: row.subscriptions.clone() });
    }
    as_it_was(&raw);
    // One of them goes on, and one ends.
    hear(&mut table, 11, 2, None).expect("it is another session");
    table.on_base_change(&tidings_streams::Change::Remove { key: name(1), log: LogId::new(1001), cause });
    assert!(table.session(LogId::new(1001)).is_none());
    let mut changes = 0;
    while table.attached() > 0 {
        let before = table.attached();
        table.apply(Change::Expect { source: SOURCE, expected: Expected::Nobody });
        assert!((1..=limits::DETACHED_PER_CHANGE).contains(&(before - table.attached())));
        changes += 1;
    }
    assert!(changes > 5, "{changes}");
    for session in sessions.clone().filter(|session| session.get() != 1001) {
        assert_eq!(hears(&table, session), (0, session.get() % 2 == 0), "{session}");
    }
}
