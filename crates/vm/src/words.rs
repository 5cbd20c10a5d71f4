//! Tests of the words of pages and blocks by one thread. Apart from them, since `tests/loom` includes those files and runs them
//! with other atomics.

mod of_page {
    use crate::page::*;

    #[test]
    fn a_page_lives() {
        let page = PageState::new();
        let seen = page.look();
        assert!(page.begin_fill(seen));
        assert!(!page.begin_fill(seen), "one thread fills");
        let seen = page.look();
        assert!(page.await_change(seen));
        assert!(page.await_change(page.look()), "a second one waits too");
        let clean = Then::Clean { heat: 1 };
        assert!(page.end(Phase::Filling, clean), "they are woken");
        assert_eq!(page.look().heat(), 1);
        assert!(page.begin_open(page.look()));
        let dirty = Then::Dirty {
            heat: 0,
            unsure: false,
        };
        assert!(!page.end(Phase::Opening, dirty));
        assert!(page.begin_leave(page.look()));
        assert_eq!(page.look().phase(), Phase::LeavingDirty);
        assert!(!page.end(Phase::LeavingDirty, dirty), "not stored");
        assert!(page.begin_discard(page.look()));
        assert!(!page.end(Phase::Discarding, Then::Absent));
        assert_eq!(page.look().phase(), Phase::Absent);
    }

    #[test]
    #[should_panic(expected = "LeavingClean does not become Clean")]
    fn only_the_table_is_allowed() {
        let page = PageState::new();
        assert!(page.begin_fill(page.look()));
        let _ = page.end(Phase::Filling, Then::Clean { heat: 0 });
        assert!(page.begin_leave(page.look()));
        let _ = page.end(Phase::LeavingClean, Then::Clean { heat: 0 });
    }
}

mod of_block {
    use crate::block::*;

    #[test]
    fn a_block_lives() {
        let block = BlockWord::new();
        assert_eq!(block.pin(), Pin::Empty);
        assert!(block.occupy(7));
        assert!(!block.occupy(8), "one record");
        assert_eq!(block.pin(), Pin::Live(7));
        assert!(!block.claim(1), "there is another user");
        assert_eq!(block.unpin(1), Unpin::Kept);
        assert!(block.claim(1));
        assert_eq!(block.pin(), Pin::Releasing);
        assert!(block.await_change());
        assert!(block.vacate(), "somebody is to be woken");
        assert!(!block.await_change());
        assert!(block.occupy(0));
        assert_eq!(block.unpin(1), Unpin::Last(0));
        assert!(!block.vacate());
    }
}
