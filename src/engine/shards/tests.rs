//! Groups without sockets: what ranks announce, and when a step no longer waits.

use super::attachment::{AnnounceError, Released};
use super::join::ShardFailure;
use super::*;
use crate::engine::step::{LogitsBlock, RegionRows, Sharded};
use crate::region::{Region, Regions};
use crate::sampling::logits::Dtype;
use metrics::Gauge;
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

const VOCAB: u32 = 12;

fn shards(change: impl FnOnce(&mut Limits)) -> Arc<Shards> {
    let mut limits = Limits::default();
    change(&mut limits);
    Shards::new(&limits, Metrics::noop())
}

fn layout(columns: &[u32]) -> Layout {
    Layout::new(columns, VOCAB, Dtype::F32, 64).expect("they cover the vocabulary")
}

fn attach(shards: &Arc<Shards>, owner: &Owner, rank: usize) -> Result<Attachment, AttachError> {
    let permit = Arc::new(shards.admit().expect("room"));
    shards.attach(Some(*owner.token()), permit, |_| Ok(rank))
}

fn row(seed: u32) -> Vec<f32> {
    (0..VOCAB).map(|column| (seed * 100 + column) as f32).collect()
}

/// A rank's columns of some rows.
fn columns(layout: &Layout, rank: usize, seeds: &[u32]) -> LogitsBlock {
    let columns = layout.columns(rank);
    let columns = columns.start as usize..columns.end as usize;
    let data: Vec<u8> = seeds.iter().flat_map(|&seed| Dtype::F32.encode(&row(seed)[columns.clone()])).collect();
    layout.inline(rank, data.into(), 0).expect("whole rows")
}

fn step(owner: &Owner, step_id: u64, seeds: &[u32]) -> LogitsBlock {
    let own = columns(owner.layout(), 0, seeds);
    LogitsBlock::awaiting(own, owner.awaited(step_id), VOCAB)
}

fn join(block: &mut LogitsBlock, now: Instant) -> Option<Instant> {
    let mut context = Context::from_waker(Waker::noop());
    block.sharded().expect("it has shards").join(now, None, &mut context)
}

fn failure(block: &mut LogitsBlock) -> ShardFailure {
    match block.sharded() {
        Some(Sharded::Failed(failure)) => *failure,
        other => panic!("expected a failure, got {other:?}"),
    }
}

fn released(rank: &Attachment) -> Option<Released> {
    match rank.poll_released(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(released) => Some(released.expect("the group goes on")),
        Poll::Pending => None,
    }
}

#[test]
fn rows_are_put_together_when_the_last_shard_is_there() {
    let shards = shards(|_| {});
    let owner = shards.open(layout(&[5, 4, 3]), None).expect("a token");
    let ranks = [attach(&shards, &owner, 1), attach(&shards, &owner, 2)].map(|rank| rank.expect("it is expected"));
    let (now, mut block) = (Instant::now(), step(&owner, 1, &[7, 8]));
    assert!(join(&mut block, now).is_some_and(|until| until > now));
    for (number, rank) in (1..).zip(&ranks) {
        assert!(block.row(0).is_none());
        rank.announce(1, columns(owner.layout(), number, &[7, 8]), 0).expect("room");
        assert_eq!(join(&mut block, now).is_none(), number == 2);
    }
    for (number, seed) in [(0, 7), (1, 8)] {
        let mut bytes = vec![0; VOCAB as usize * 4];
        block.row(number).expect("it is there").copy_to(&mut bytes);
        assert_eq!(bytes, Dtype::F32.encode(&row(seed)));
    }
    assert!(block.row(2).is_none() && block.failure().is_none());
    assert_eq!(ranks.each_ref().map(released), [None, None], "they are read still");
    drop(block);
    assert_eq!(ranks.each_ref().map(released), [Some(Released { step_id: 1, joined: true }); 2]);
}

#[test]
fn columns_that_lie_together_are_read_where_they_lie() {
    let (shards, regions) = (shards(|_| {}), Regions::new(&Limits::default(), Gauge::noop(), Gauge::noop()));
    let invitation = regions.invite().expect("a token");
    let owner = shards.open(layout(&[5, 7]), None).expect("a token");
    let rank = attach(&shards, &owner, 1).expect("it is expected");
    let [one, other] = [(); 2].map(|()| regions.lease(invitation.regions(), 1 << 12).expect("room"));
    let place = RegionRows { offset: 8, rows: 2, row_stride: 20 };
    let words = (0..1024).map(|at| (at as f32).to_bits());
    for region in [&one, &other] {
        region.words().expect("it is the host's").write(0, words.clone());
    }
    for (step_id, region) in (1..).zip([&one, &other]) {
        let columns = |rank, region: &Arc<Region>| owner.layout().in_region(rank, Arc::clone(region), place);
        let own = columns(0, &one).expect("they lie there");
        let mut block = LogitsBlock::awaiting(own, owner.awaited(step_id), VOCAB);
        rank.announce(step_id, columns(1, region).expect("they lie there"), 0).expect("room");
        assert_eq!(join(&mut block, Instant::now()), None);
        let row = block.row(1).expect("it is there");
        let is_there = row.memory() == Some(std::ptr::from_ref(one.memory()).addr());
        assert_eq!((is_there, row.in_parts()), (step_id == 1, step_id == 1));
        let mut bytes = vec![0; VOCAB as usize * 4];
        row.copy_to(&mut bytes);
        assert_eq!(bytes, Dtype::F32.encode(&(22..34).map(|at| at as f32).collect::<Vec<_>>()));
    }
}

/// Row 0 of both begins at the same place of the region, but not row 1.
#[test]
fn columns_whose_rows_lie_otherwise_are_put_together() {
    let (shards, regions) = (shards(|_| {}), Regions::new(&Limits::default(), Gauge::noop(), Gauge::noop()));
    let invitation = regions.invite().expect("a token");
    let owner = shards.open(layout(&[5, 7]), None).expect("a token");
    let rank = attach(&shards, &owner, 1).expect("it is expected");
    let region = regions.lease(invitation.regions(), 1 << 12).expect("room");
    region.words().expect("it is the host's").write(0, (0..1024).map(|at| (at as f32).to_bits()));
    let columns = |rank, row_stride| {
        let place = RegionRows { offset: 8, rows: 2, row_stride };
        owner.layout().in_region(rank, Arc::clone(&region), place).expect("they lie there")
    };
    let mut block = LogitsBlock::awaiting(columns(0, 20), owner.awaited(1), VOCAB);
    rank.announce(1, columns(1, 24), 0).expect("room");
    assert_eq!(join(&mut block, Instant::now()), None);
    let mut bytes = vec![0; VOCAB as usize * 4];
    block.row(1).expect("it is there").copy_to(&mut bytes);
    // 2 + 20 and the four after it, then those from 2 + 24 + 5 on.
    assert_eq!(bytes, Dtype::F32.encode(&(22..27).chain(31..38).map(|at| at as f32).collect::<Vec<_>>()));
}

#[test]
fn the_largest_steps_have_all_of_their_columns_too() {
    let shards = shards(|_| {});
    let owner = shards.open(layout(&[5, 7]), None).expect("a token");
    let rank = attach(&shards, &owner, 1).expect("it is expected");
    for step_id in [u64::MAX - 1, u64::MAX] {
        rank.announce(step_id, columns(owner.layout(), 1, &[7, 8]), 0).expect("room");
        let mut block = step(&owner, step_id, &[7, 8]);
        assert!(join(&mut block, Instant::now()).is_none());
        let mut bytes = vec![0; VOCAB as usize * 4];
        block.row(1).expect("it is there").copy_to(&mut bytes);
        assert_eq!(bytes, Dtype::F32.encode(&row(8)), "step {step_id}");
        drop(block);
        assert_eq!(released(&rank), Some(Released { step_id, joined: true }));
    }
}

#[test]
fn room_comes_back_whatever_becomes_of_a_shard() {
    let shards = shards(|limits| limits.max_shard_bytes = 100);
    let owner = shards.open(layout(&[6, 6]), None).expect("a token");
    let rank = attach(&shards, &owner, 1).expect("it is expected");
    let shard = || columns(owner.layout(), 1, &[1]);
    rank.announce(1, shard(), 60).expect("room");
    assert_eq!(rank.announce(2, shard(), 60), Err(AnnounceError::Refused(Refusal::ShardBytes)));
    assert_eq!(rank.announce(2, shard(), 101), Err(AnnounceError::TooLarge { limit: 100 }));
    assert_eq!(rank.announce(1, shard(), 1), Err(AnnounceError::Order { last: 1 }));
    // A shard that rank 0 passes over.
    let mut block = step(&owner, 2, &[1]);
    assert!(join(&mut block, Instant::now()).is_some());
    assert_eq!((shards.bytes.used(), released(&rank)), (0, Some(Released { step_id: 1, joined: false })));
    // A shard that is joined.
    rank.announce(2, shard(), 60).expect("room");
    assert!(join(&mut block, Instant::now()).is_none());
    assert_eq!((shards.bytes.used(), released(&rank)), (60, None));
    drop(block);
    assert_eq!((shards.bytes.used(), released(&rank)), (0, Some(Released { step_id: 2, joined: true })));
    // Too late.
    rank.announce(3, shard(), 60).expect("room");
    let mut block = step(&owner, 4, &[1]);
    join(&mut block, Instant::now());
    assert_eq!((shards.bytes.used(), released(&rank)), (0, Some(Released { step_id: 3, joined: false })));
    // A shard that takes all room, whose rank leaves, and then its group.
    rank.announce(5, shard(), 100).expect("room");
    drop(rank);
    assert_eq!((shards.bytes.used(), shards.ranks.used()), (100, 0));
    drop(owner);
    assert_eq!(shards.bytes.used(), 0);
    drop(block);
    assert!(lock(&shards.groups).is_empty());
}

#[test]
fn a_step_waits_until_its_time_and_says_for_whom() {
    let shards = shards(|limits| limits.shard_timeout = Duration::from_secs(5));
    let owner = shards.open(layout(&[4, 4, 4]), None).expect("a token");
    let (now, second) = (Instant::now(), Duration::from_secs(1));
    let mut block = step(&owner, 1, &[1]);
    assert_eq!(join(&mut block, now), Some(now + 5 * second));
    assert_eq!(join(&mut block, now + 4 * second), Some(now + 5 * second), "its turn is not anew");
    assert_eq!(join(&mut block, now + 5 * second), None);
    assert_eq!(failure(&mut block), ShardFailure::NotAttached { rank: 1, waited: 5 * second });
    let one = attach(&shards, &owner, 1).expect("it is expected");
    let mut block = step(&owner, 2, &[1]);
    join(&mut block, now);
    assert_eq!(join(&mut block, now + 5 * second), None);
    assert_eq!(failure(&mut block), ShardFailure::NotAnnounced { rank: 1, waited: 5 * second });
    one.announce(3, columns(owner.layout(), 1, &[1]), 0).expect("room");
    let mut block = step(&owner, 3, &[1]);
    join(&mut block, now);
    assert_eq!(join(&mut block, now + 5 * second), None);
    assert_eq!(failure(&mut block), ShardFailure::NotAttached { rank: 2, waited: 5 * second });
    drop(one);
    let mut block = step(&owner, 4, &[1]);
    assert_eq!(join(&mut block, now), None);
    assert_eq!(failure(&mut block), ShardFailure::Left { rank: 1 });
}

#[test]
fn steps_behind_one_that_waited_in_vain_do_not_wait_as_long_again() {
    let shards = shards(|limits| limits.shard_timeout = Duration::from_secs(5));
    let owner = shards.open(layout(&[6, 6]), None).expect("a token");
    let rank = attach(&shards, &owner, 1).expect("it is expected");
    let second = Duration::from_secs(1);
    let mut blocks = [1, 2, 3].map(|step_id| step(&owner, step_id, &[1]));
    let (start, [first, next, last]) = (Instant::now(), &mut blocks);
    join(first, start);
    assert_eq!(join(first, start + 5 * second), None);
    assert_eq!(join(next, start + 5 * second), None, "it was there as long as the first");
    assert_eq!(failure(next), ShardFailure::NotAnnounced { rank: 1, waited: 5 * second });
    // A shard that arrives after all is used.
    rank.announce(3, columns(owner.layout(), 1, &[1]), 0).expect("room");
    assert_eq!(join(last, start + 5 * second), None);
    assert!(last.failure().is_none());
    let mut later = step(&owner, 4, &[1]);
    assert_eq!(join(&mut later, start + 6 * second), Some(start + 11 * second), "the one before it had its shards");
}

/// The next step had its shards by then, or waits for them as long as any.
#[test]
fn a_step_that_failed_at_once_takes_no_time_from_the_next() {
    let shards = shards(|limits| limits.shard_timeout = Duration::from_secs(5));
    let owner = shards.open(layout(&[6, 6]), None).expect("a token");
    let mut blocks = [1, 2].map(|step_id| step(&owner, step_id, &[1]));
    let (start, second, [first, next]) = (Instant::now(), Duration::from_secs(1), &mut blocks);
    drop(attach(&shards, &owner, 1).expect("it is expected"));
    assert_eq!(join(first, start + 3 * second), None);
    assert_eq!(failure(first), ShardFailure::Left { rank: 1 });
    let _back = attach(&shards, &owner, 1).expect("it is expected again");
    assert_eq!(join(next, start + 3 * second), Some(start + 8 * second));
}

/// Counts how often it is woken.
#[derive(Debug, Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_waiting_step_is_woken_when_it_need_not_wait_any_longer() {
    let shards = shards(|_| {});
    let owner = shards.open(layout(&[4, 4, 4]), None).expect("a token");
    let ranks = [1, 2].map(|rank| attach(&shards, &owner, rank).expect("it is expected"));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let waits = |block: &mut LogitsBlock| {
        let sharded = block.sharded().expect("it has shards");
        sharded.join(Instant::now(), None, &mut Context::from_waker(&waker)).is_some()
    };
    let mut block = step(&owner, 1, &[1]);
    assert!(waits(&mut block));
    ranks[0].announce(1, columns(owner.layout(), 1, &[1]), 0).expect("room");
    assert_eq!(woken.0.load(Ordering::Relaxed), 0, "rank 2 is missing");
    ranks[1].announce(1, columns(owner.layout(), 2, &[1]), 0).expect("room");
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(!waits(&mut block) && block.failure().is_none());
    let mut block = step(&owner, 2, &[1]);
    assert!(waits(&mut block));
    let [_stays, leaves] = ranks;
    drop(leaves);
    assert_eq!(woken.0.load(Ordering::Relaxed), 2, "one that left does not come");
    assert!(!waits(&mut block));
    assert_eq!(failure(&mut block), ShardFailure::Left { rank: 2 });
}

#[test]
fn tokens_and_places_are_those_of_the_group() {
    let shards = shards(|limits| limits.max_attached_ranks = 2);
    let owner = shards.open(layout(&[6, 6]), None).expect("a token");
    let other = shards.open(layout(&[6, 6]), None).expect("a token");
    let rank = attach(&shards, &owner, 1).expect("it is expected");
    assert_eq!(attach(&shards, &owner, 1).err(), Some(AttachError::Taken { rank: 1 }));
    let elsewhere = attach(&shards, &other, 1).expect("another group's");
    assert!(matches!(shards.admit(), Err(Refusal::TooManyRanks)));
    drop(elsewhere);
    let token = *other.token();
    drop(other);
    let permit = Arc::new(shards.admit().expect("room"));
    let gone = shards.attach(Some(token), permit, |_| Ok::<_, AttachError>(1));
    assert_eq!(gone.err(), Some(AttachError::UnknownToken));
    drop(owner);
    assert!(matches!(rank.poll_released(&mut Context::from_waker(Waker::noop())), Poll::Ready(None)));
    assert_eq!(rank.announce(1, columns(&layout(&[6, 6]), 1, &[1]), 0), Ok(()), "nobody minds");
}

/// Anything that ranks and rank 0 may do, in any order.
#[derive(Debug, Clone)]
enum Act {
    Attach(usize),
    Leave(usize),
    Announce(usize, u64, usize),
    Step(u64, usize),
    Later(u64),
    Poll(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let rank = 1..4usize;
    let act = prop_oneof![
        rank.clone().prop_map(Act::Attach),
        rank.clone().prop_map(Act::Leave),
        (rank.clone(), 1..4u64, 1..3usize).prop_map(|(rank, ahead, rows)| Act::Announce(rank, ahead, rows)),
        (1..3u64, 1..3usize).prop_map(|(ahead, rows)| Act::Step(ahead, rows)),
        (0..8u64).prop_map(Act::Later),
        rank.prop_map(Act::Poll),
    ];
    prop::collection::vec(act, 0..80)
}

proptest! {
    /// Whatever they do: a step's rows are complete or it says why they are not, no room is lost, and every shard is answered once.
    #[test]
    fn whatever_ranks_do_rows_are_whole_or_refused_and_nothing_is_lost(acts in acts()) {
        let shards = shards(|limits| limits.max_shard_bytes = 1000);
        let owner = shards.open(layout(&[3, 4, 2, 3]), None).expect("a token");
        let (mut ranks, mut last, mut named) = ([const { None }; 4], [0; 4], 0);
        let (mut owed, mut now, mut waiting): ([Vec<u64>; 4], _, Option<LogitsBlock>) =
            (Default::default(), Instant::now(), None);
        for act in acts {
            match act {
                Act::Attach(rank) => match attach(&shards, &owner, rank) {
                    Ok(attached) => {
                        prop_assert!(ranks[rank].replace(attached).is_none());
                        (last[rank], owed[rank]) = (0, Vec::new());
                    }
                    Err(_) => prop_assert!(ranks[rank].is_some()),
                },
                Act::Leave(rank) => drop(ranks[rank].take()),
                Act::Announce(rank, ahead, rows) => {
                    let Some(attached) = &ranks[rank] else { continue };
                    let step_id = last[rank] + ahead;
                    let seeds: Vec<u32> = (0..rows).map(|row| step_id as u32 * 10 + row as u32).collect();
                    if attached.announce(step_id, columns(owner.layout(), rank, &seeds), 40).is_ok() {
                        last[rank] = step_id;
                        owed[rank].push(step_id);
                    }
                }
                Act::Step(ahead, rows) => {
                    if waiting.is_none() {
                        named += ahead;
                        let seeds: Vec<u32> = (0..rows).map(|row| named as u32 * 10 + row as u32).collect();
                        waiting = Some(step(&owner, named, &seeds));
                    }
                }
                Act::Later(seconds) => now += Duration::from_secs(seconds),
                Act::Poll(rank) => {
                    let Some(attached) = &ranks[rank] else { continue };
                    while let Some(answer) = released(attached) {
                        let at = owed[rank].iter().position(|&step_id| step_id == answer.step_id);
                        prop_assert!(at.is_some(), "{answer:?} is answered once");
                        owed[rank].remove(at.unwrap_or_default());
                    }
                }
            }
            if let Some(block) = &mut waiting && join(block, now).is_none() {
                if block.failure().is_none() {
                    for row_number in 0..block.rows() {
                        let mut bytes = vec![0; VOCAB as usize * 4];
                        block.row(row_number).expect("it is whole").copy_to(&mut bytes);
                        prop_assert_eq!(&bytes, &Dtype::F32.encode(&row(named as u32 * 10 + row_number as u32)));
                    }
                }
                waiting = None;
            }
        }
        drop(waiting);
        drop((owner, ranks));
        prop_assert_eq!((shards.bytes.used(), shards.ranks.used()), (0, 0));
    }
}
