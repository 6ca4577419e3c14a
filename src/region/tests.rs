use super::*;
use crate::locks::lock;
use crate::sampling::logits::Foreign;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn regions(change: impl FnOnce(&mut Limits)) -> Arc<Regions> {
    let mut limits = Limits { max_bytes_per_region: 1 << 20, max_region_bytes: 2 << 20, ..Limits::default() };
    change(&mut limits);
    Regions::new(&limits, Gauge::noop(), Gauge::noop())
}

#[test]
fn what_the_worker_writes_is_what_is_read_at_any_offset_and_length() {
    let memory = Memory::create(memory::whole_pages(8000)).expect("memory");
    let descriptor = memory.descriptor().try_clone_to_owned().expect("a descriptor");
    let mut window = worker::Window::map(&descriptor, memory.len()).expect("a mapping");
    let written: Vec<u8> = (0..memory.len()).map(|i| (i * 31 % 251) as u8).collect();
    window.write(0, &written);
    let end = memory.len();
    for offset in (0..20).chain(end - 20..end) {
        for len in (0..40).chain(505..520).chain([1000, 1023, 1024, 4096, 7777]).filter(|len| offset + len <= end) {
            let mut read = vec![0; len];
            memory.copy(offset, &mut read);
            assert_eq!(read, written[offset..offset + len], "{len} bytes from {offset}");
        }
    }
    for (offset, len) in [(end, 1), (end - 1, 2), (usize::MAX, 1)] {
        let copy = std::panic::AssertUnwindSafe(|| memory.copy(offset, &mut vec![0; len]));
        let past = std::panic::catch_unwind(copy);
        assert!(past.is_err(), "{len} bytes from {offset}");
    }
}

#[test]
fn a_region_of_huge_pages_and_some_more_is_read_as_it_was_written() {
    let len = memory::whole_pages((4 << 20) + 5000);
    let memory = Memory::create(len).expect("memory");
    let descriptor = memory.descriptor().try_clone_to_owned().expect("a descriptor");
    let mut window = worker::Window::map(&descriptor, len).expect("a mapping");
    let written: Vec<u8> = (0..len).map(|i| (i * 7 % 253) as u8).collect();
    let mut read = vec![1; len];
    memory.copy(0, &mut read);
    assert!(read.iter().all(|&byte| byte == 0), "new memory is zeros");
    window.write(0, &written);
    memory.copy(0, &mut read);
    assert!(read == written);
    for boundary in [2 << 20, 4 << 20] {
        memory.copy(boundary - 100, &mut read[..200]);
        assert_eq!(read[..200], written[boundary - 100..boundary + 100]);
    }
}

#[test]
fn room_is_taken_while_a_region_is_looked_at_and_comes_back() {
    let regions = regions(|_| {});
    let invitation = regions.invite().expect("a token");
    let stream = invitation.regions();
    let one = regions.lease(stream, 1 << 20).expect("room");
    let _other = regions.lease(stream, 1 << 20).expect("room");
    assert!(matches!(regions.lease(stream, 1), Err(LeaseError::NoRoom(_))));
    let gone = stream.release(one.id(), one.generation()).expect("it is leased");
    assert!(gone.is_none(), "nobody lent it");
    assert!(matches!(regions.lease(stream, 1), Err(LeaseError::NoRoom(_))), "it is still looked at");
    drop(one);
    assert_eq!((regions.bytes.used(), regions.count.used()), (1 << 20, 1));
    drop(invitation);
    assert_eq!((regions.bytes.used(), regions.count.used()), (1 << 20, 1), "as before");
    drop(_other);
    assert_eq!((regions.bytes.used(), regions.count.used()), (0, 0));
}

/// A lack of places is not reported as a lack of memory, because other limits have to be raised.
#[test]
fn a_region_that_is_given_up_and_still_looked_at_has_its_place() {
    let regions = regions(|limits| (limits.max_streams, limits.max_regions_per_stream) = (1, 1));
    let invitation = regions.invite().expect("a token");
    let stream = invitation.regions();
    let one = regions.lease(stream, 1).expect("room");
    stream.release(one.id(), one.generation()).expect("it is leased");
    assert!(matches!(regions.lease(stream, 1), Err(LeaseError::NoPlace(1))));
    drop(one);
    assert!(regions.lease(stream, 1).is_ok());
}

#[test]
fn big_regions_are_freed_by_a_thread_of_their_own_and_their_room_is_waited_for() {
    let regions = regions(|limits| (limits.max_bytes_per_region, limits.max_region_bytes) = (3 << 20, 4 << 20));
    let invitation = regions.invite().expect("a token");
    let stream = invitation.regions();
    let lease = |bytes| regions.lease(stream, bytes).map(|region| (region.id(), region.generation()));
    let (big, small) = (lease(3 << 20).expect("room"), lease(1 << 20).expect("room"));
    let go_on = regions.freeing.pause();
    stream.release(big.0, big.1).expect("it is leased");
    assert_eq!(regions.bytes.used(), 4 << 20, "it waits for the thread");
    stream.release(small.0, small.1).expect("it is leased");
    assert_eq!(regions.bytes.used(), 3 << 20, "a small one is freed at once");
    // Makes room by waiting until the first region is freed.
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| lease(2 << 20));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished(), "there is no room yet");
        drop(go_on);
        waits.join().expect("it does not panic").expect("room");
    });
    assert_eq!((regions.bytes.used(), regions.count.used()), (2 << 20, 1));
    drop(invitation);
    regions.freeing.settle();
    assert_eq!((regions.bytes.used(), regions.count.used()), (0, 0));
}

#[test]
fn ids_come_again_and_generations_do_not() {
    let regions = regions(|limits| limits.max_regions_per_stream = 2);
    let invitation = regions.invite().expect("a token");
    let stream = invitation.regions();
    let lease = || regions.lease(stream, 100).map(|region| (region.id(), region.generation()));
    assert_eq!((lease().expect("room"), lease().expect("room")), ((1, 1), (2, 2)));
    assert!(matches!(lease(), Err(LeaseError::TooMany(2))));
    stream.release(1, 1).expect("it is leased");
    assert_eq!(stream.release(1, 1).err(), Some(LookUpError::Unknown { id: 1 }));
    assert_eq!(lease().expect("room"), (1, 3));
    assert_eq!(stream.get(1, 1).err(), Some(LookUpError::Stale { generation: 1, current: 3 }));
    assert_eq!(stream.get(1, 3).expect("it is leased").len(), memory::whole_pages(100));
    for bytes in [0, (1 << 20) + 1, u64::MAX] {
        assert!(matches!(regions.lease(stream, bytes), Err(LeaseError::Size { .. })), "{bytes}");
    }
}

#[test]
fn a_token_works_once_and_not_for_ever() {
    let regions = regions(|_| {});
    let (now, late) = (Instant::now(), Instant::now() + TOKEN_LIFE + Duration::from_secs(1));
    let (one, other, gone) = (regions.invite(), regions.invite(), regions.invite());
    let (one, other, gone) = (one.expect("a token"), other.expect("a token"), gone.expect("a token"));
    assert!(one.token() != other.token());
    let (admitted, role) = regions.admit(one.token(), now).expect("it waits");
    assert!(Arc::ptr_eq(&admitted, one.regions()) && matches!(role, Role::Owner));
    let (guest, left) = (regions.invite_guest(one.regions()), regions.invite_guest(one.regions()));
    let (guest, left) = (guest.expect("a token"), left.expect("a token"));
    let (admitted, role) = regions.admit(guest.token(), now).expect("it waits");
    let Role::Guest(over) = role else { panic!("a guest is no owner") };
    assert!(Arc::ptr_eq(&admitted, one.regions()) && !over.is_cancelled());
    drop(guest);
    assert!(over.is_cancelled() && !one.regions().over.load(Ordering::SeqCst), "only the guest is gone");
    let token = *left.token();
    drop(left);
    assert!(regions.admit(&token, now).is_none(), "it has left");
    assert!(regions.admit(one.token(), now).is_none(), "a second time");
    assert!(regions.admit(other.token(), late).is_none(), "too late");
    let token = *gone.token();
    drop(gone);
    assert!(regions.admit(&token, now).is_none(), "its stream has ended");
    assert!(lock(&regions.tokens).is_empty());
    assert!(!format!("{one:?}").contains(&format!("{:?}", &one.token().bytes()[..4])), "it comes into no log");
}

#[test]
fn nothing_is_leased_to_a_stream_that_has_ended() {
    let regions = regions(|_| {});
    let invitation = regions.invite().expect("a token");
    let stream = Arc::clone(invitation.regions());
    drop(invitation);
    assert!(matches!(regions.lease(&stream, 1), Err(LeaseError::Ended)));
    assert_eq!((regions.bytes.used(), regions.count.used()), (0, 0));
}

/// What a worker may try on its descriptor.
#[cfg(target_os = "linux")]
#[test]
fn a_worker_can_change_neither_size_nor_seals_and_keeps_no_page() {
    use rustix::fs::{FallocateFlags, SealFlags};
    let memory = Memory::create(1 << 16).expect("memory");
    let theirs = memory.descriptor().try_clone_to_owned().expect("a descriptor");
    for len in [0, 4096, 1 << 20] {
        assert!(rustix::fs::ftruncate(&theirs, len).is_err(), "{len}");
    }
    assert!(rustix::fs::fallocate(&theirs, FallocateFlags::empty(), 1 << 16, 4096).is_err());
    assert!(rustix::fs::fcntl_add_seals(&theirs, SealFlags::WRITE).is_err());
    // The worker may punch holes into the memory; they read as zeros.
    let mut window = worker::Window::map(&theirs, 1 << 16).expect("a mapping");
    window.write(0, &[7; 100]);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&theirs, punch, 0, 1 << 16).expect("holes are allowed");
    let mut read = [1; 100];
    memory.copy(0, &mut read);
    assert_eq!(read, [0; 100]);
    // When the region ends its pages are freed, whatever the worker keeps.
    window.write(0, &[7; 4096]);
    assert!(rustix::fs::fstat(&theirs).expect("a file").st_blocks > 0);
    drop(memory);
    assert_eq!(rustix::fs::fstat(&theirs).expect("a file").st_blocks, 0);
}
