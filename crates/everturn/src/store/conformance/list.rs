//! The list of all promises. A case that is not named here does not exist: the functions would be dead code.

use super::Case;

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_list {
    ($then:ident $with:tt) => { $crate::$then! { $with
        sessions {
            a_created_session_is_read_back_whole: "A session is read back as it was created, through any handle.",
            without_an_id_a_fresh_one_is_made: "A session without an id gets a fresh one.",
            a_taken_id_is_refused: "Creating under a taken id is `AlreadyExists`, and what was there stays.",
            what_is_unknown_reads_as_nothing: "Reading what does not exist gives nothing, not an error.",
            a_turn_in_an_unknown_session_is_not_found: "A turn in a session that does not exist is `NotFound`.",
            one_id_names_a_session_per_app_and_user: "An id is unique for one app and user; others may use it too.",
            odd_ids_are_ordinary_and_distinct: "Any valid id works, and ids that look alike are different ids.",
            racing_creations_of_one_key_make_one_session: "Of racing creations of one key exactly one succeeds.",
            first_uses_at_once_all_succeed: "Many handles may use a new store for the first time at once.",
            racing_openers_share_one_session: "Racing openers of one session all get it, and all their turns are kept.",
            initial_state_is_split_by_scope: "Initial state is split by scope, `temp:` is dropped, the rest is record 1.",
            what_a_session_starts_with_is_at_its_first_point: "What a session is created with is at its first point.",
            a_seed_makes_an_empty_session_resumable: "A seed is a resumable snapshot that consumes no index.",
            an_empty_session_reads_empty: "An empty session has no messages, no custom state, no artifacts, no events.",
            metadata_that_is_no_object_is_refused: "A session's metadata is an object.",
            times_are_the_clocks: "Times are those of the store's clock, whatever it says.",
        }
        turns {
            a_turn_adds_its_input_and_its_answer: "A completed turn moves the head and adds its input and its answer.",
            turns_follow_each_other_in_order: "Turns follow each other in the order of their ends.",
            a_begun_turn_is_visible_everywhere: "A begun turn is visible to every handle when `begin` returns.",
            an_input_is_kept_whole: "A turn's input is kept whole, while it runs and afterwards.",
            the_head_stays_until_the_end: "Only a completed end moves the head.",
            points_inside_a_turn_are_readable: "Every record of a turn is a point that can be read.",
            a_record_changes_things_in_a_fixed_order: "In a record, the splice comes first, then the events in order.",
            a_turn_knows_where_it_started: "A turn says which point it started from, while it runs and afterwards.",
            turns_are_counted_along_the_line: "`turnIndex` counts completed turns along the line, from 0.",
            opportunities_count_whether_taken_or_not: "`index` counts opportunities for a snapshot, taken or not.",
            an_empty_turn_counts: "A turn that changes nothing is still a turn.",
            what_a_turn_leaves_is_kept: "A turn's outcome is kept with its end.",
            a_failure_may_be_kept_as_a_completed_turn: "A turn may complete with an error and not be void.",
            a_turn_that_waits_for_a_person_shows: "A session whose last turn waits for a person says so.",
            usage_adds_up_failed_turns_too: "A session's usage counts all its turns, a line's only completed ones.",
            tool_calls_are_written_down: "Tool calls are written down, with the attempt that made each.",
            a_first_turn_may_create_its_session: "A turn can create its session, and opens it if it exists.",
            a_turn_does_not_open_another_agents_session: "A turn that opens a session for an agent is refused another agent's.",
            what_messages_hold_survives_to_the_letter: "Messages are kept to the letter: unknown members, numbers, bytes.",
            a_snapshot_id_inside_a_message_is_not_kept: "`metadata.snapshotId` is stripped from messages that come in.",
            null_is_a_value_wherever_it_is_written: "A null that was written is told from what was left out.",
            a_turn_may_take_its_time: "A turn may write many steps.",
            an_edit_does_not_answer_for_a_person: "Where a session stands decides whether it waits for a person.",
            a_turn_of_state_only_says_nothing: "A turn may change state and say nothing.",
        }
        edits {
            an_edit_needs_no_turn: "An edit changes the head's state outside a turn.",
            an_edit_beside_a_running_turn_is_refused: "An edit on a branch with a running turn is `Busy`.",
            an_edit_may_insist_on_its_head: "An edit of a moved head is a `Conflict`, or kept beside the line.",
            an_edit_of_an_old_head_does_not_wait: "An edit kept beside the line waits for no turn.",
            racing_edits_of_one_head_have_one_winner: "Of racing edits of one head exactly one succeeds.",
            an_edit_may_go_beside_a_running_turn: "An edit that may leave the head never waits for a turn.",
        }
        voids {
            a_failed_turn_leaves_the_head_where_it_was: "A failed turn moves no head and frees its branch.",
            a_void_hides_a_turn_from_later_points_only: "A void hides a turn from later points only.",
            events_of_void_turns_are_shown_on_request: "Events of void turns are hidden unless asked for.",
            a_void_turn_is_shown_wherever_it_began: "A void turn is shown on request wherever on the line it began.",
            a_failed_snapshot_tells_why_and_cannot_be_resumed: "A failed snapshot has its error and is not resumable.",
            a_turn_cannot_start_inside_what_is_void: "The point of a void is not resumable.",
            an_aborted_end_is_void_as_well: "A turn that ends as aborted is void.",
            a_first_turn_that_fails_leaves_the_seed: "A first turn that fails leaves the seed to resume.",
            a_point_inside_a_turn_outlives_its_failure: "A snapshot inside a turn stays resumable if the turn fails.",
            voids_leave_no_trace_in_what_follows: "After a void, everything is as if the turn had never been.",
            a_failed_turn_does_not_put_artifacts: "A failed turn leaves no artifact behind.",
        }
        records {
            sequence_numbers_start_at_one_and_never_repeat: "Sequence numbers start at 1, only grow and never repeat.",
            the_log_says_what_each_record_is: "The log names each record's kind, turn, attempt and segment.",
            the_log_keeps_void_records: "Void records stay in the log and are marked.",
            the_log_is_read_in_pages: "Pages of the log neither repeat nor hide a record.",
            the_log_is_the_same_for_everybody: "Every handle reads the same log.",
        }
        custom {
            absent_null_and_empty_are_three_things: "Absent, null and empty custom state are different states.",
            keys_without_prefix_are_its_top_level: "Keys without a prefix are custom state's top level.",
            a_key_is_replaced_never_merged: "A key's value is replaced, never merged into.",
            deltas_of_input_steps_and_end_apply_in_order: "State deltas apply in the order they are written.",
            a_whole_state_replaces_the_keys_before_it: "A whole custom state replaces what came before it.",
            numbers_keep_their_spelling: "Numbers in custom state keep their spelling.",
            a_long_way_of_small_changes_adds_up: "Any number of small changes adds up, at every point on the way.",
            keys_need_an_object: "Keys of a custom state that is no object are `Invalid`.",
            prefixed_keys_inside_it_are_refused: "Custom state cannot hold keys with a scope's prefix.",
            its_schema_version_is_kept_beside_it: "The schema version is kept beside custom state, outside the digest.",
        }
        states {
            every_point_reads_as_it_was: "The state at every point is what it was when the point was new.",
            a_place_that_is_not_there_reads_as_nothing: "A place that does not exist has no state.",
            a_state_in_hand_does_not_change: "A state that was read does not change under its reader.",
            a_splice_keeps_the_first_and_replaces_the_rest: "A splice keeps the first messages and replaces the rest.",
            a_splice_of_a_long_conversation_is_exact: "A splice is exact wherever it cuts a long conversation.",
            a_splice_cannot_keep_what_is_not_there: "A splice that keeps more than there is is `Invalid`.",
            a_compaction_changes_the_view_not_what_was_said: "A compaction changes the model's view, not the messages.",
            compactions_follow_each_other_and_stay_readable: "Older views stay readable at their points.",
            pinned_messages_stay_in_view: "A view is read back with its pinned messages.",
            partial_events_are_taken_and_not_kept: "Partial events are accepted and nothing of them is stored.",
        }
        busy {
            a_busy_branch_refuses_and_consumes_nothing: "`Busy` consumes nothing: no record, no key, no snapshot id.",
            a_waiting_turn_starts_where_the_other_ended: "A turn that waited starts at the head it finds then.",
            an_abort_lets_the_next_one_in: "An abort frees the branch for who waits.",
            waiting_turns_go_in_order: "Within a process, waiting turns go in order.",
            waiting_ends_at_its_deadline: "Waiting ends as `Busy` at its deadline.",
            who_stops_waiting_holds_nothing: "A waiter that is dropped does not hold up the others.",
            turns_of_all_handles_come_one_after_the_other: "Turns of several handles never mix on a branch.",
            going_beside_starts_from_the_same_head: "`Busy::Branch` starts a side line at the same head.",
            an_unexpected_head_is_a_conflict_before_any_work: "`expect` refuses before any work.",
            an_expectation_is_checked_once_the_branch_is_free: "`expect` is held against the head found after waiting.",
            racing_turns_that_expect_one_head_have_one_winner: "Of racing turns that expect one head one succeeds.",
            branches_and_sessions_are_busy_by_themselves: "A turn makes only its own branch busy.",
            an_unknown_branch_is_not_found: "A turn or an edit on a branch that does not exist is `NotFound`.",
            a_waiting_turn_passes_the_dead: "Who waits for a turn that dies gets the branch.",
            a_deleted_session_lets_nobody_wait: "Who waits for a session that is deleted is told.",
        }
        fences {
            an_ended_turn_writes_no_more: "A turn ends once; its fence is refused afterwards.",
            a_silent_writer_counts_as_dead: "A writer that is silent longer than its lease counts as dead.",
            a_sign_of_life_keeps_the_lease: "Renewing and writing keep a turn alive.",
            a_late_writer_may_go_on_if_nobody_took_its_place: "A late writer may go on while nobody took its place.",
            the_wall_clock_kills_nobody: "Jumps of the wall clock end no lease.",
            the_dead_keep_nobody_waiting: "A dead turn does not keep its branch busy.",
            who_lost_its_branch_is_fenced_off: "A dead writer whose branch was taken is `Fenced`.",
            a_turn_may_be_written_through_any_handle: "A fence is all it takes to write: any handle will do.",
            an_edit_passes_the_dead: "A dead turn does not keep an edit waiting.",
            taking_over_starts_the_turn_again: "Taking over starts the turn again, from its start, with its input.",
            taking_over_keeps_the_ledger: "Taking over keeps the tool calls of the dead attempt.",
            the_old_fence_is_refused_after_taking_over: "After taking over, the old fence is `Fenced`, nothing written.",
            a_dead_attempt_is_void: "What a dead attempt wrote is void once the turn is taken over.",
            a_dead_turn_can_be_taken_over_again_and_again: "Every taking over raises the attempt.",
            the_living_and_the_ended_cannot_be_taken_over: "Living turns are `Busy`, ended ones a `Conflict`.",
            racing_heirs_have_one_winner: "Of racing takers-over exactly one succeeds.",
            a_turn_taken_over_after_its_branch_went_on_ends_beside_it: "A late taking over goes on beside the branch.",
            points_of_a_dead_attempt_stay_resumable: "Snapshots of a dead attempt stay resumable.",
            an_abort_is_final: "An aborted turn is void, and its writer is told `Aborted`.",
            a_turn_is_aborted_by_snapshot_or_invocation_too: "A turn can be aborted by what names it from outside.",
            aborting_what_has_ended_changes_nothing: "Aborting a turn that has ended leaves it as it is.",
            the_dead_can_be_aborted: "A dead turn can be aborted.",
            running_turns_are_listed_by_session: "Running turns are listed, of one session or of all.",
        }
        keys {
            a_running_turn_is_not_begun_twice: "A key whose turn runs answers `Running`, at once.",
            a_completed_turn_is_answered_from_what_was_kept: "A key whose turn completed answers with what was kept.",
            failed_and_aborted_turns_do_not_run_again: "A key whose turn failed or was aborted runs nothing.",
            a_dead_turn_is_taken_over_by_its_key: "A key whose turn is dead takes it over.",
            another_payload_is_a_conflict: "A key with another start, branch or input is a `Conflict`.",
            how_a_turn_is_asked_for_is_no_payload: "Expectation, invocation and snapshot id are no payload.",
            a_key_lives_as_long_as_its_session: "A key belongs to one session, for its life.",
            a_retried_first_request_makes_one_session: "Without an id, the session's id derives from app, user and key.",
            racing_requests_with_one_key_run_once: "Of racing requests with one key one begins.",
            racing_first_requests_make_one_session: "Racing first requests with one key make one session.",
            a_side_line_has_keys_as_well: "Keys work on side lines.",
        }
        lost {
            a_lost_turn_has_failed_and_holds_nothing: "A turn that is lost has failed for everybody, and holds nothing.",
            it_runs_again_under_its_key: "A key whose turn was lost makes the next attempt at it.",
            what_did_nothing_begins_where_the_branch_stands_now: "One that wrote no step begins anew at the head.",
            it_runs_again_when_it_is_taken_over: "A turn that was lost can be taken over; one that failed cannot.",
            the_dead_can_be_given_up: "A dead turn can be ended as lost, also after its branch was taken.",
            only_what_failed_is_lost: "A turn is lost as failed, or not at all.",
            a_session_with_lost_turns_can_be_carried: "A session with lost turns is exported, imported and sound.",
        }
        side_lines {
            a_snapshot_at_a_free_head_takes_the_lease: "A start at a snapshot that is a free head takes the lease.",
            a_start_by_snapshot_never_waits: "A start by snapshot never waits.",
            the_head_moves_when_the_side_line_completes: "A side line moves an unchanged, free head when it completes.",
            parallel_turns_from_one_snapshot_all_survive: "Parallel turns from one snapshot all survive, resumable.",
            a_side_line_never_pushes_a_leaseholder_off: "A side line that ends under a lease stays off the head.",
            a_side_line_does_not_undo_what_came_meanwhile: "A side line does not move a head that moved meanwhile.",
            a_failed_turn_meanwhile_is_no_change: "A failed turn meanwhile does not keep a side line off the head.",
            a_failed_side_line_moves_nothing: "A failed side line moves nothing.",
            side_lines_pass_the_dead: "A dead leaseholder does not keep a side line off the head.",
            a_turn_may_start_at_any_settled_point: "A turn may start at any completed point or step.",
            a_running_turns_point_can_be_gone_on_from: "A step of a running turn can be gone on from.",
            a_snapshot_must_belong_to_the_session_named: "A snapshot must belong to the session named.",
            a_snapshot_finds_its_branch: "A start by snapshot finds its branch: named, head's, only one, `main`.",
            a_side_line_may_name_the_branch_it_moves: "A side line moves the branch it names.",
            an_expectation_holds_for_side_lines_too: "`expect` holds for side lines.",
            a_turn_forced_off_its_head_still_completes: "A turn forced off its head completes, with its scopes.",
            a_turn_forced_off_holds_no_lease: "A turn forced off its head holds no lease any more.",
        }
        detached {
            a_detached_turn_has_a_pending_snapshot: "A detached turn has a pending snapshot, which is the latest.",
            a_pending_snapshot_completes_with_its_turn: "A pending snapshot becomes its turn's completed one.",
            a_detached_turn_has_its_row_even_if_nobody_asks: "A detached turn always has its snapshot.",
            a_pending_snapshot_shows_how_its_turn_ended: "A pending snapshot shows failure and abort.",
            a_pending_snapshot_expires_with_its_writer: "A pending snapshot of a dead writer reads as expired.",
            an_expired_turn_is_taken_over_under_its_snapshot: "Taking over keeps the pending snapshot's id.",
            the_newest_pending_snapshot_is_the_latest: "The latest is the newest pending, else the nearest.",
            detaching_needs_a_reserved_snapshot: "Detaching without a reserved snapshot id is `Invalid`.",
            a_reserved_snapshot_id_is_taken: "A snapshot id names one snapshot.",
            a_reserved_id_is_nobody_elses: "A snapshot id that a running turn has reserved is taken.",
            a_step_may_detach_and_be_a_point_at_once: "A step that detaches can have a snapshot of its own.",
            a_running_turn_says_whether_it_is_detached: "A running turn says whether it is in the background.",
        }
        events {
            an_event_is_read_back_whole: "An event is read back with every member it was given.",
            the_store_fills_in_what_was_left_out: "The store fills in id, time, invocation, place and turn.",
            events_keep_the_order_they_were_written_in: "Events keep the order they were written in, whatever their times.",
            a_tail_is_the_last_so_many: "A tail is the last so many events.",
            a_tail_of_none_is_none: "A tail of 0 is no event, not all of them.",
            a_tail_counts_events_inside_records: "A tail counts events, not records, and no void ones.",
            a_time_is_inclusive: "`since` includes its time.",
            the_tail_is_taken_before_the_time: "With a tail and a time, the tail is taken first.",
            sequence_numbers_cut_out_a_stretch: "`after` excludes, `until` includes.",
            pages_neither_repeat_nor_hide_events: "Pages of events neither repeat nor hide one, while others write.",
            events_are_read_along_any_line: "Events are read along any line.",
            filters_do_not_change_the_state: "Reading some events changes no state.",
            temporary_keys_are_not_in_events: "Events and records carry no `temp:` keys.",
            an_end_without_events_says_nothing: "A record without events adds none.",
        }
        snapshots {
            a_snapshot_names_its_point: "A snapshot names its point, parent, indexes, digest and how it came about.",
            a_turn_without_a_snapshot_leaves_none: "A snapshot is taken only where one is asked for.",
            the_latest_is_the_nearest_at_or_before_the_head: "The latest is the nearest at or before `main`'s head.",
            snapshots_inside_a_turn_that_failed_are_not_the_latest: "Snapshots of void turns are on no later line.",
            the_nearest_is_found_from_any_point: "The nearest is the last completed one at or before a point's line.",
            a_digest_finds_the_newest_on_the_line: "A digest finds the newest snapshot on the session's line.",
            snapshots_are_listed_in_the_order_of_the_log: "Snapshots are listed in the log's order, orphans on request.",
            pages_of_snapshots_neither_repeat_nor_hide: "Pages of snapshots neither repeat nor hide one.",
            labels_come_and_go: "A snapshot's label can be set and taken away, and no rewind undoes it.",
            whether_a_snapshot_is_orphaned_is_always_current: "Orphaned is computed when it is read.",
            an_edit_can_be_a_snapshot: "An edit's point can have a snapshot.",
        }
        branches {
            a_branch_stands_at_its_own_head: "Turns and edits on a branch move its head only.",
            a_branch_needs_a_free_name_and_a_settled_point: "A branch stands at a completed point.",
            a_rewind_deletes_nothing_and_redo_brings_it_back: "A rewind deletes nothing, and a redo brings it back.",
            a_turn_after_a_rewind_opens_another_line: "A turn after a rewind opens another line; the old one stays.",
            a_rewind_concerns_the_line_only: "A rewind leaves scopes, usage, versions and titles.",
            a_branch_can_be_deleted_but_not_main: "Deleting a branch orphans; `main` cannot be deleted.",
            a_leased_branch_stays_where_it_is_unless_forced: "Under a lease, moves and deletions are `Busy` unless forced.",
            a_move_may_insist_on_the_head: "A move that expects another head is a `Conflict`, and moves nothing.",
            the_dead_do_not_hold_a_head: "A dead turn does not keep a head from moving.",
            branch_changes_are_admin_records: "Changes of branches are admin records, and no points.",
            a_line_through_many_branches_reads_right: "A line through many regenerated turns reads right.",
            state_of_one_branch_is_not_anothers: "Custom state belongs to the line, not to the session.",
        }
        forks {
            a_fork_begins_where_the_other_stands: "A fork begins with the other's state, title and metadata.",
            forks_and_originals_go_their_own_ways: "What happens in a fork stays in the fork, and vice versa.",
            a_fork_has_a_first_snapshot_of_its_own: "A fork has a first snapshot of its own and lists no others.",
            a_fork_may_begin_at_any_settled_point: "A fork may begin at any completed point or step, also orphaned.",
            what_cannot_be_forked_is_refused: "Taken ids, void and unknown places are refused.",
            a_fork_does_not_wait_for_a_running_turn: "A running turn does not keep a fork waiting.",
            a_fork_of_a_question_does_not_wait_for_its_answer: "A fork does not inherit that somebody is asked.",
            forks_of_forks_reach_all_the_way: "A fork of a fork reaches all the way to the root.",
            a_fork_can_go_back_before_its_own_beginning: "A fork can be rewound into what it inherited.",
            a_fork_outlives_its_original: "Deleting and purging the original leave its forks whole.",
            a_fork_names_no_snapshot_of_an_original_that_is_gone: "A fork names no snapshot that went with its original.",
            a_fork_knows_whose_turns_it_has_inherited: "A fork's inherited events keep their invocation.",
            a_fork_goes_on_counting_versions: "A fork's artifact versions go on from the fork point's count.",
            a_fork_stays_with_its_user: "A fork has the same app, user and scopes.",
        }
        trees {
            turns_hang_where_they_started: "Every turn and edit of a tree hangs from the point it followed.",
            a_node_says_what_became_of_it: "A node says whether its turn runs, is dead, completed, failed or was aborted.",
            heads_and_orphans_are_current: "A tree shows where branches stand now, and what is on no line.",
            a_tree_is_read_in_pages: "The pages of a tree are the whole tree, whatever their size.",
            compactions_forks_and_usage_are_told: "A tree tells compactions, where a fork begins, snapshots and costs.",
            a_preview_says_how_a_session_looks: "A preview has the last message, shortened, and how much there is.",
        }
        transfer {
            what_is_brought_in_is_what_was_taken_out: "A session is the same in another store, and when it comes back.",
            a_copy_lives_beside_its_original: "A copy gets another id and fresh snapshots, and nothing over what is there.",
            a_fork_brings_along_where_it_comes_from: "A fork is whole in a store that has none of its origins.",
            a_turn_that_runs_arrives_aborted: "A turn that had not ended is aborted where it is brought in.",
            what_is_shared_stays_where_it_is: "What sessions share is not brought along.",
            what_does_not_hold_together_is_refused: "What was left out or forged is `Invalid`, and nothing is brought in.",
            a_session_that_goes_while_it_is_taken_out_is_told: "An export whose session is deleted does not go on.",
        }
        scopes {
            app_keys_are_shared_by_all_users: "`app:` keys are shared by an app's users.",
            user_keys_are_shared_by_a_users_sessions: "`user:` keys are shared by a user's sessions within an app.",
            session_keys_are_not_shared: "Keys without a prefix belong to one session.",
            temporary_keys_are_never_kept: "`temp:` keys are never stored.",
            values_are_replaced_and_null_is_one: "Values are replaced, null is a value, a key can be removed.",
            scopes_are_written_when_a_turn_completes: "Scopes of input, steps and end apply when the turn completes.",
            scopes_of_turns_that_did_not_complete_are_dropped: "Scopes of turns that did not complete never apply.",
            scopes_of_a_refused_end_are_not_written: "A refused end writes no scope.",
            a_turn_off_the_head_completes_with_its_scopes: "A turn that completes off the head applies its scopes.",
            an_edit_writes_scopes_too: "An edit's scopes apply with it.",
            scopes_outlive_sessions_and_rewinds: "Scopes outlive rewinds and sessions.",
            scopes_are_there_before_any_session: "Scopes nobody wrote are empty.",
            racing_turns_merge_their_keys: "Racing turns merge their keys; none is lost.",
            all_keys_a_session_sees_are_merged: "A session sees all scopes' keys, with their prefixes.",
            keys_that_make_no_sense_are_refused: "A key without a name, or both set and removed, is `Invalid`.",
            scopes_are_changed_without_a_turn: "Shared keys can be changed outside of turns, all or none.",
        }
        listing {
            sessions_are_listed_by_their_owner: "Sessions are listed by app, by user, or all.",
            what_is_listed_is_what_is_read: "A session is listed as it is read.",
            the_one_written_to_last_comes_first: "Listings are ordered by writes, not by clocks.",
            labels_and_metadata_filter: "Labels and top-level scalars of metadata filter.",
            status_filters: "A session's status filters.",
            pages_have_the_size_asked_for: "Pages of sessions neither repeat nor hide one, in every order.",
            a_listing_is_as_of_its_first_page: "A listing is as of its first page: touched sessions keep their place.",
            deleted_sessions_drop_out_of_a_listing: "Deleted sessions drop out of a listing.",
            what_is_no_cursor_is_refused: "A cursor of another listing is `Invalid`.",
            running_turns_touch_but_do_not_hide: "A begun turn counts as a write to its session.",
        }
        pages {
            a_page_ends_at_its_bytes_and_goes_on_without_gap_or_repeat: "A page ends at its bytes and goes on there.",
            a_page_of_artifacts_ends_at_its_bytes: "A page of artifacts ends at its bytes and goes on there.",
            no_page_has_more_bytes_than_a_page_may_have: "However much is asked for, a page has no more than it may have.",
        }
        admin {
            an_update_changes_what_it_names: "An update changes what it names and nothing else.",
            an_update_never_meets_a_running_turn: "An update never conflicts with a running turn and moves no head.",
            an_update_is_an_admin_record: "An update has a sequence number and is in no segment.",
            an_update_survives_every_rewind: "An update survives every rewind.",
            an_update_of_nothing_writes_nothing: "An update of nothing writes nothing.",
            updates_and_turns_may_race: "Racing updates and turns all arrive.",
            wrong_updates_are_refused_whole: "A wrong update is refused as a whole.",
        }
        deletion {
            what_is_deleted_is_gone: "A deleted session is gone at once, with its snapshots.",
            deleting_what_is_not_there_is_no_error: "Deleting what is not there is no error.",
            another_users_session_is_not_deleted: "A deletion concerns one app and user.",
            a_session_created_again_is_a_new_one: "A session created again under an id inherits nothing.",
            points_of_a_session_created_again_are_its_own: "Points of a session created again are its own, whatever ran there.",
            late_writers_are_told_of_the_deletion: "Late writers are told `Deleted`, also when the id exists again.",
            turns_of_the_deleted_are_gone: "Turns of a deleted session are no longer listed, aborted or taken over.",
            a_purge_leaves_nothing: "A purge removes every record and says how many.",
            numbers_of_the_purged_are_not_given_again: "A late writer of a purged session reaches no other one.",
            what_is_deleted_already_can_be_purged: "What is deleted already can be purged.",
            snapshot_ids_of_the_deleted_are_free: "A purge leaves nothing under the session's snapshot ids.",
        }
        artifacts {
            one_name_is_replaced_where_it_stands: "An artifact of a known name replaces it where it stands.",
            unnamed_artifacts_are_appended: "Unnamed artifacts are appended and have no versions.",
            an_artifact_is_read_back_whole: "An artifact is read back whole, in the state and as a version.",
            versions_count_per_name_from_zero: "Versions count per session and name, from 0, and are all readable.",
            equal_content_is_a_version_of_its_own: "Putting equal content again is another version.",
            versions_are_given_at_the_end: "Versions are given when a turn completes.",
            a_void_turn_burns_no_version: "A void turn burns no version.",
            versions_are_never_rewound: "Versions are never rewound, hidden or given twice.",
            side_lines_share_the_count: "Side lines share the session's count.",
            what_is_removed_stays_readable: "Versions of a removed artifact stay readable.",
            an_event_names_the_versions_of_its_record: "An event names the versions its record made.",
            wrong_artifacts_are_refused: "Empty and overlong names are refused.",
            many_artifacts_keep_their_order: "Artifacts keep their order.",
        }
        digests {
            every_path_to_a_state_gives_its_digest: "Equal states have equal digests, whatever their path or session.",
            what_belongs_to_a_state_changes_its_digest: "Messages, custom state, artifacts and view make the digest.",
            what_does_not_belong_to_a_state_leaves_its_digest: "Scopes, usage, titles and schema versions do not.",
            strings_are_compared_by_what_they_say: "How strings are escaped and members ordered does not count.",
            big_numbers_are_told_apart: "Numbers count as they are written.",
            a_digest_is_what_the_format_says: "The digest is the one the format defines.",
            every_point_has_the_digest_of_what_it_holds: "Every point that can be read has the digest of its content.",
            receipts_states_and_snapshots_agree: "Receipts, states and snapshots agree on digests.",
        }
        streams {
            what_is_kept_is_read_back_to_the_letter: "Chunks are read back to the letter, in order, with their places.",
            a_stream_is_read_from_anywhere: "What follows a place is read without gap or repeat, in pages of any size.",
            a_reader_follows_a_running_turn: "A reader that comes back with its last place sees every chunk once.",
            chunks_are_kept_once_and_in_order: "A gap, a repeat and an empty pack are `Invalid`, and nothing is kept.",
            of_racing_packs_one_is_kept: "Of racing packs with one number exactly one is kept.",
            streams_do_not_mix: "Every turn has a stream of its own.",
            a_turn_without_a_stream_has_an_empty_one: "A turn that keeps nothing has an empty stream, not a dropped one.",
            a_stream_leaves_no_trace_in_its_session: "Streams touch no head, record, digest, time or watcher of a session.",
            a_pack_has_a_limit: "A pack over the limit is `TooLarge`, and the turn goes on.",
            a_page_has_a_limit: "A page is bounded in chunks and bytes, and never empty because of that.",
            a_stream_is_bounded: "Over its limit a stream loses its oldest chunks, and readers before them are told.",
            a_position_that_is_not_there_is_refused: "A place beyond the end or in no attempt is `Invalid`.",
            an_unknown_turn_is_not_found: "The stream of an unknown turn is `NotFound`.",
            a_reopened_store_has_its_streams: "Reopening a store loses no stream.",
        }
        stream_ends {
            who_may_not_write_may_not_stream: "Chunks are refused as `Fenced`, `Aborted` or `Deleted`, like steps.",
            another_attempt_begins_with_an_empty_stream: "A new attempt has an empty stream, and every reader sees it.",
            a_page_says_how_the_turn_is: "A page says whether the turn runs, is dead, or how it ended.",
            a_stream_outlives_its_turn_for_a_while: "After its turn's end a stream stays for a grace period.",
            a_stream_goes_when_its_time_is_over: "After the grace period a stream is gone, and readers are told.",
            the_deleted_have_no_streams: "A deleted session's streams are gone at once, and stay gone.",
            a_fork_has_no_streams: "A fork has none of its original's streams, and keeps none alive.",
        }
        watching {
            a_watcher_is_told_what_was_written: "A watcher is told of every kind of write.",
            a_watcher_hears_of_other_handles: "A watcher hears of other handles' writes.",
            nothing_is_told_when_nothing_changed: "Nothing is told that was there before or was told already.",
            what_happens_between_two_looks_is_not_lost: "What happens between two looks is told at the next.",
            a_watcher_is_told_of_the_deletion: "A watcher is told of the deletion, also when the id exists again.",
            a_pending_snapshot_can_be_waited_for: "Many may wait for a pending snapshot.",
            what_is_unknown_cannot_be_watched: "Watching what does not exist is `NotFound`.",
            a_sound_store_verifies: "Everything written verifies.",
            a_sound_store_can_be_reopened: "Reopening a sound store loses nothing, not even running turns.",
        }
        races {
            a_turn_ends_once: "Of racing ends of one turn one succeeds, the other is `Fenced`.",
            an_abort_and_an_end_agree: "Of an abort and an end the first is final, and both know.",
            one_of_two_side_lines_moves_the_head: "Racing side lines both complete; the head is at one of them.",
            one_of_two_names_is_taken: "Of racing branches or forks of one name one is made.",
            a_deletion_and_an_end_agree: "A turn that ends while its session is deleted is acknowledged or told `Deleted`.",
        }
        limits {
            a_long_message_goes_through: "A message of two megabytes goes through.",
            a_record_has_a_limit: "A record over the limit is `TooLarge`, and the turn goes on.",
            custom_state_has_a_limit: "Custom state over the limit is `TooLarge`.",
            state_grows_key_by_key_up_to_its_limit: "The limit holds for what deltas add up to.",
            a_page_of_nothing_is_refused: "A page of nothing is `Invalid`; one of very many is cut.",
            a_refused_end_can_be_corrected: "A refused write leaves its turn as it was.",
            a_refused_begin_leaves_nothing: "A refused begin leaves no session behind.",
            many_small_events_fit_one_record: "A record can hold thousands of events.",
            what_is_kept_can_be_taken_out_however_deep: "JSON that is nested too deep is refused; what is kept can be exported.",
        }
        durability {
            what_was_acknowledged_survives_a_kill: "What was acknowledged survives a kill.",
            what_was_acknowledged_survives_a_power_cut: "What was acknowledged survives a power cut.",
            what_a_running_turn_wrote_survives_a_power_cut: "An acknowledged step survives a power cut, with its begin.",
            a_killed_turn_leaves_its_input_and_its_ledger: "A killed turn leaves its input and ledger, and can be taken over.",
            the_next_turn_does_not_wait_for_a_killed_one: "After a kill the next turn does not wait.",
            numbers_are_not_given_twice_after_a_kill: "Internal numbers are not given twice, not even after a kill.",
            a_turn_killed_right_after_its_begin_is_known: "A turn killed right after its begin is known and can be taken over.",
            who_closes_its_handle_is_dead_at_once: "Turns of a closed handle are dead at once.",
            what_is_purged_does_not_come_back: "What is purged does not come back after a kill.",
            another_handle_reads_what_this_one_wrote_at_once: "Handles never serve each other's past.",
            what_was_streamed_survives_a_kill: "Chunks that were kept survive a kill.",
            a_stream_without_a_gap_survives_a_power_cut: "Chunks survive a power cut up to the last durable write, without gap.",
        }
        walk {
            random_steps_agree_with_a_simple_model: "Any sequence of writes adds up as in a model that keeps every state.",
            equal_walks_give_equal_states: "The same conversation held twice gives the same digest.",
        }
    } };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_table {
    ({} $($group:ident { $($name:ident: $guarantee:literal,)* })*) => {
        &[$($(
            $crate::store::conformance::Case {
                name: concat!(stringify!($group), "::", stringify!($name)),
                guarantee: $guarantee,
                run: |bench| Box::pin(super::$group::$name(bench)),
            },
        )*)*]
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    ({ $harness:expr } $($group:ident { $($name:ident: $guarantee:literal,)* })*) => {
        $(
            mod $group {
                #[allow(unused_imports)]
                use super::*;
                $(
                    #[doc = $guarantee]
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $name() {
                        let name = concat!(stringify!($group), "::", stringify!($name));
                        $crate::store::conformance::check(name, ::std::sync::Arc::new($harness)).await;
                    }
                )*
            }
        )*
    };
}

/// Makes one test per case. Takes an expression that makes a fresh [`Harness`](crate::store::conformance::Harness).
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($harness:expr) => {
        $crate::__conformance_list! { __conformance_tests { $harness } }
    };
}

pub(super) static CASES: &[Case] = crate::__conformance_list! { __conformance_table {} };
