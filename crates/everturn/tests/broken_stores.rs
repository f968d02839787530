//! Every promise can be broken, and the suite notices.
//!
//! A case that cannot fail proves nothing. Each store here breaks one promise on purpose; the case that stands for the
//! promise must fail on it, and pass on the same store unbroken.

mod broken;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use broken::{Bench, Breakage, Whole, heads, lost, reads, sessions, streams, turns};
use everturn::ManualClock;
use everturn::store::conformance::{Verdict, case, cases};

async fn is_caught<B: Breakage>(name: &str, how: impl FnOnce(&ManualClock) -> B) {
    let case = case(name).unwrap_or_else(|| panic!("there is no case {name:?}"));
    let whole = case.run(Arc::new(Bench::new(|_| Whole))).await;
    assert!(matches!(whole, Verdict::Passed), "{name} does not pass on a whole store: {whole:?}");
    let broken = case.run(Arc::new(Bench::new(how))).await;
    match broken {
        Verdict::Failed(failure) => println!("{name}: {failure}"),
        unnoticed => panic!("{name} does not notice: {unnoticed:?}"),
    }
}

macro_rules! broken_stores {
    ($($test:ident: $how:expr => $($case:literal),+;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                $(is_caught($case, $how).await;)+
            }
        )*

        const CAUGHT: &[&str] = &[$($($case),+),*];
    };
}

broken_stores! {
    creations_that_overwrite: |_| sessions::CreationOverwrites => "sessions::a_taken_id_is_refused";
    creations_that_open: |_| sessions::CreationOpens => "sessions::racing_creations_of_one_key_make_one_session";
    ids_without_case: |_| sessions::CaseDoesNotCount => "sessions::odd_ids_are_ordinary_and_distinct";
    a_greeting_in_every_session: |_| heads::CreatesWithAGreeting => "sessions::an_empty_session_reads_empty";
    updates_that_replace_metadata: |_| sessions::UpdateReplacesMetadata => "admin::an_update_changes_what_it_names";
    updates_that_meet_turns: |_| sessions::UpdateMeetsTurns => "admin::an_update_never_meets_a_running_turn";
    listings_by_offset: |_| sessions::ListsByOffset => "listing::a_listing_is_as_of_its_first_page";
    listings_that_hide_the_touched: |_| sessions::HidesTouched::default() => "listing::a_listing_is_as_of_its_first_page";
    listings_by_clock: |_| sessions::ListsByClock => "listing::the_one_written_to_last_comes_first";
    labels_ignored: |_| sessions::IgnoresLabels => "listing::labels_and_metadata_filter";
    deletions_that_delete_nothing: |_| sessions::DeletesNothing => "deletion::what_is_deleted_is_gone";
    the_deleted_resurrected: |_| sessions::ResurrectsTheDeleted => "deletion::late_writers_are_told_of_the_deletion";
    points_that_outlive_their_session: |_| heads::PointsAreRemembered::default() =>
        "deletion::points_of_a_session_created_again_are_its_own";
    purges_that_purge_nothing: |_| sessions::PurgesNothing => "deletion::a_purge_leaves_nothing";
    forks_that_die_with_their_original: |_| sessions::ForksDieWithTheirOriginal => "forks::a_fork_outlives_its_original";
    parents_that_are_gone: |_| heads::ParentsAreRemembered::default() =>
        "forks::a_fork_names_no_snapshot_of_an_original_that_is_gone";
    invocations_that_are_forgotten: |_| heads::InvocationsAreForgotten::default() =>
        "forks::a_fork_knows_whose_turns_it_has_inherited";
    forks_that_copy_usage: |_| sessions::ForkCopiesUsage => "forks::a_fork_begins_where_the_other_stands";
    forks_that_copy_messages: |_| heads::ForkCopiesMessages => "forks::forks_and_originals_go_their_own_ways",
        "forks::a_fork_goes_on_counting_versions";
    keys_across_sessions: |_| sessions::KeysAreGlobal::default() => "keys::a_key_lives_as_long_as_its_session";
    users_that_share_state: |_| sessions::UsersShareTheirState => "scopes::user_keys_are_shared_by_a_users_sessions";
    null_that_deletes: |_| sessions::NullDeletes => "scopes::values_are_replaced_and_null_is_one";
    scopes_of_failed_turns: |_| sessions::ScopesOfFailedTurnsApply =>
        "scopes::scopes_of_turns_that_did_not_complete_are_dropped";
    scopes_before_the_end: |_| sessions::ScopesApplyEarly => "scopes::scopes_are_written_when_a_turn_completes";
    exports_nested_too_deep: |_| reads::ExportsTooDeep => "limits::what_is_kept_can_be_taken_out_however_deep";
    the_too_large_swallowed: |_| sessions::SwallowsTheTooLarge => "limits::custom_state_has_a_limit";
    verifications_of_nothing: |_| sessions::VerifiesNothing => "watching::a_sound_store_verifies";
    watches_that_replay: |_| sessions::WatchReplays => "watching::nothing_is_told_when_nothing_changed";

    expect_ignored: |_| turns::IgnoresExpect => "busy::an_unexpected_head_is_a_conflict_before_any_work",
        "edits::an_edit_may_insist_on_its_head", "branches::a_move_may_insist_on_the_head", "busy::racing_turns_that_expect_one_head_have_one_winner";
    agents_ignored: |_| turns::IgnoresAgents => "turns::a_turn_does_not_open_another_agents_session";
    keys_ignored: |_| turns::IgnoresKeys => "keys::a_running_turn_is_not_begun_twice",
        "keys::racing_requests_with_one_key_run_once";
    payloads_ignored: |_| turns::IgnoresPayloads::default() => "keys::another_payload_is_a_conflict";
    branches_that_are_never_busy: |_| turns::NeverBusy => "busy::a_busy_branch_refuses_and_consumes_nothing";
    turns_that_never_wait: |_| turns::NeverWaits => "busy::a_waiting_turn_starts_where_the_other_ended",
        "busy::waiting_turns_go_in_order";
    waiting_without_a_deadline: |_| turns::WaitsBeyondTheDeadline => "busy::waiting_ends_at_its_deadline";
    fences_ignored: |_| turns::IgnoresFences => "fences::the_old_fence_is_refused_after_taking_over",
        "fences::who_lost_its_branch_is_fenced_off";
    fenced_writers_that_write: |_| turns::FencedWritersWrite => "fences::the_old_fence_is_refused_after_taking_over";
    acknowledged_and_forgotten: |_| turns::AcknowledgesAndForgets => "turns::a_turn_adds_its_input_and_its_answer";
    voids_dropped: |_| turns::DropsVoids => "voids::a_failed_turn_leaves_the_head_where_it_was",
        "voids::an_aborted_end_is_void_as_well";
    what_failed_forgotten: |_| turns::ForgetsWhatFailed => "voids::a_void_hides_a_turn_from_later_points_only";
    numbers_used_twice: |_| turns::ReusesNumbers::default() => "records::sequence_numbers_start_at_one_and_never_repeat";
    void_turns_counted: |_| turns::CountsVoidTurns::default() => "turns::turns_are_counted_along_the_line";
    digests_of_paths: |_| turns::DigestOfThePath => "digests::receipts_states_and_snapshots_agree";
    numbers_respelt: |_| turns::RespellsNumbers => "custom::numbers_keep_their_spelling";
    values_merged: |_| turns::MergesValues => "custom::a_key_is_replaced_never_merged";
    partial_events_kept: |_| turns::KeepsPartialEvents => "states::partial_events_are_taken_and_not_kept";
    history_compacted: |_| turns::CompactionRewritesHistory => "states::a_compaction_changes_the_view_not_what_was_said";
    edits_under_a_lease: |_| turns::EditsUnderLease => "edits::an_edit_beside_a_running_turn_is_refused";
    edits_never_beside: |_| turns::EditsNeverGoBeside => "edits::an_edit_may_go_beside_a_running_turn";
    aborts_of_nothing: |_| turns::AbortsNothing => "fences::an_abort_is_final";
    aborts_that_undo: |_| turns::AbortUndoes => "fences::aborting_what_has_ended_changes_nothing";
    the_ledger_forgotten: |_| turns::ForgetsTheLedger => "fences::taking_over_keeps_the_ledger";
    a_wall_clock_that_kills: |clock: &ManualClock| turns::WallClockKills(clock.clone(), Mutex::default()) =>
        "fences::the_wall_clock_kills_nobody";
    signs_of_life_ignored: |_| turns::IgnoresSignsOfLife => "fences::a_sign_of_life_keeps_the_lease";
    turns_detached_without_a_row: |_| turns::DetachesWithoutARow => "detached::a_detached_turn_has_a_pending_snapshot";
    words_lost_now_and_then: |_| turns::LosesAWordNowAndThen::default() =>
        "walk::random_steps_agree_with_a_simple_model";
    turns_that_end_twice: |_| turns::EndsTwice::default() => "fences::an_ended_turn_writes_no_more",
        "races::a_turn_ends_once";
    only_main: |_| turns::OnlyMain => "branches::a_branch_stands_at_its_own_head";

    the_lost_that_failed_for_good: |_| lost::LostForGood => "lost::it_runs_again_under_its_key",
        "lost::the_dead_can_be_given_up", "lost::only_what_failed_is_lost";
    the_lost_that_linger: |_| lost::LostTurnsLinger => "lost::a_lost_turn_has_failed_and_holds_nothing",
        "lost::a_session_with_lost_turns_can_be_carried";
    the_lost_that_are_left: |_| lost::TakesOverTheDeadOnly => "lost::it_runs_again_when_it_is_taken_over";

    side_lines_that_push: |_| heads::SideLinesPush => "side_lines::a_side_line_never_pushes_a_leaseholder_off",
        "side_lines::a_side_line_does_not_undo_what_came_meanwhile";
    late_side_lines_lost: |_| heads::LosesLateSideLines => "side_lines::parallel_turns_from_one_snapshot_all_survive";
    snapshots_that_wait: |_| heads::SnapshotsWait => "side_lines::a_start_by_snapshot_never_waits";
    heads_that_move_at_the_begin: |_| heads::HeadsMoveAtTheBegin =>
        "side_lines::the_head_moves_when_the_side_line_completes";
    failures_resumed: |_| heads::ResumesWhatFailed => "voids::a_failed_snapshot_tells_why_and_cannot_be_resumed";
    moves_under_a_lease: |_| heads::MovesUnderLease => "branches::a_leased_branch_stays_where_it_is_unless_forced";
    rewinds_that_delete: |_| heads::RewindDeletes => "branches::a_rewind_deletes_nothing_and_redo_brings_it_back";
    rewinds_that_forget_titles: |_| heads::RewindForgetsTitles => "branches::a_rewind_concerns_the_line_only",
        "admin::an_update_survives_every_rewind";
    orphans_remembered: |_| heads::OrphansAreRemembered::default() =>
        "snapshots::whether_a_snapshot_is_orphaned_is_always_current";

    tails_from_the_front: |_| reads::TailIsTheHead => "events::a_tail_is_the_last_so_many";
    zero_as_all: |_| reads::ZeroIsAll => "events::a_tail_of_none_is_none";
    times_exclusive: |_| reads::SinceIsExclusive => "events::a_time_is_inclusive";
    the_time_before_the_tail: |_| reads::TimeBeforeTail => "events::the_tail_is_taken_before_the_time";
    pages_by_offset: |_| reads::PagesByOffset => "events::pages_neither_repeat_nor_hide_events";
    pages_of_any_weight: |_| reads::PagesOfAnyWeight =>
        "pages::a_page_ends_at_its_bytes_and_goes_on_without_gap_or_repeat",
        "pages::a_page_of_artifacts_ends_at_its_bytes", "pages::no_page_has_more_bytes_than_a_page_may_have";
    heavy_items_left_out: |_| reads::LeavesOutTheHeavy =>
        "pages::a_page_ends_at_its_bytes_and_goes_on_without_gap_or_repeat";
    void_turns_shown: |_| reads::ShowsVoidTurns => "voids::events_of_void_turns_are_shown_on_request";
    times_cut: |_| reads::TimesAreCut => "events::an_event_is_read_back_whole";
    temporary_keys_kept: |_| reads::StoresTemporaryKeys::default() => "events::temporary_keys_are_not_in_events",
        "scopes::temporary_keys_are_never_kept";
    logs_that_hide_voids: |_| reads::LogHidesVoids => "records::the_log_keeps_void_records";
    heads_remembered: |_| reads::HeadsAreRemembered::default() => "custom::keys_without_prefix_are_its_top_level";
    nowhere_as_the_head: |_| reads::NowhereIsTheHead => "states::a_place_that_is_not_there_reads_as_nothing";
    pending_for_ever: |_| reads::PendingNeverExpires => "detached::a_pending_snapshot_expires_with_its_writer";
    latest_without_pending: |_| reads::LatestIgnoresPending => "detached::the_newest_pending_snapshot_is_the_latest";
    latest_wherever_the_head: |_| reads::LatestIgnoresTheHead =>
        "snapshots::the_latest_is_the_nearest_at_or_before_the_head";
    nearest_wherever_the_point: |_| reads::NearestIgnoresThePoint =>
        "snapshots::the_nearest_is_found_from_any_point";
    only_taken_snapshots_counted: |_| reads::CountsTakenSnapshots => "turns::opportunities_count_whether_taken_or_not";
    versions_rewound: |_| reads::VersionsAreRewound => "artifacts::versions_are_never_rewound";
    versions_burnt: |_| reads::VoidsBurnVersions => "artifacts::a_void_turn_burns_no_version";
    equal_contents_merged: |_| reads::EqualContentIsOneVersion => "artifacts::equal_content_is_a_version_of_its_own";
    tools_noted_late: |_| reads::NotesToolsLate => "turns::tool_calls_are_written_down";
    chunks_respelt: |_| streams::RespellsChunks => "streams::what_is_kept_is_read_back_to_the_letter";
    chunks_repeated: |_| streams::RepeatsTheLastChunk => "streams::a_stream_is_read_from_anywhere",
        "streams::a_reader_follows_a_running_turn";
    chunks_skipped: |_| streams::SkipsTheRestOfAPack::default() => "streams::a_stream_is_read_from_anywhere",
        "streams::a_reader_follows_a_running_turn";
    gaps_and_repeats_taken: |_| streams::TakesGapsAndRepeats => "streams::chunks_are_kept_once_and_in_order",
        "streams::of_racing_packs_one_is_kept";
    streams_of_sessions: |_| streams::OneStreamPerSession::default() => "streams::streams_do_not_mix";
    empty_taken_for_dropped: |_| streams::EmptyIsDropped => "streams::a_turn_without_a_stream_has_an_empty_one";
    chunks_that_touch_their_session: |_| streams::ChunksTouchTheirSession =>
        "streams::a_stream_leaves_no_trace_in_its_session";
    chunks_as_signs_of_life: |_| streams::ChunksAreSignsOfLife => "streams::a_stream_leaves_no_trace_in_its_session";
    large_packs_left_out: |_| streams::LeavesOutTheTooLarge => "streams::a_pack_has_a_limit";
    pages_without_bounds: |_| streams::PagesWithoutBounds => "streams::a_page_has_a_limit";
    losses_hidden: |_| streams::HidesTheLoss => "streams::a_stream_is_bounded",
        "stream_ends::a_stream_goes_when_its_time_is_over";
    lost_readers_started_over: |_| streams::StartsOverWhenLost => "streams::a_position_that_is_not_there_is_refused";
    unknown_turns_with_streams: |_| streams::UnknownIsEmpty => "streams::an_unknown_turn_is_not_found",
        "stream_ends::the_deleted_have_no_streams";
    streams_lost_by_reopening: |_| streams::ReopeningLosesStreams::default() =>
        "streams::a_reopened_store_has_its_streams";
    streams_without_fences: |_| streams::StreamsIgnoreFences => "stream_ends::who_may_not_write_may_not_stream";
    attempts_forgotten: |_| streams::ForgetsAttempts => "stream_ends::another_attempt_begins_with_an_empty_stream";
    streams_that_never_end: |_| streams::StreamsNeverEnd => "stream_ends::a_page_says_how_the_turn_is";
    streams_that_end_with_their_turn: |_| streams::StreamsEndWithTheirTurn =>
        "stream_ends::a_stream_outlives_its_turn_for_a_while";
    streams_that_stay: |_| streams::StreamsStay::default() => "stream_ends::a_stream_goes_when_its_time_is_over",
        "stream_ends::the_deleted_have_no_streams", "streams::a_stream_is_bounded";
    streams_shared_by_forks: |_| streams::ForksShareStreams::default() => "stream_ends::a_fork_has_no_streams";
    nobody_detached: |_| streams::NobodyIsDetached => "detached::a_running_turn_says_whether_it_is_detached";
    trees_without_voids: |_| reads::TreesHideVoids => "trees::a_node_says_what_became_of_it";
    exports_of_main_only: |_| reads::ExportsMainOnly => "transfer::what_is_brought_in_is_what_was_taken_out";
    heads_that_lag: |_| reads::HeadLagsBehind => "turns::a_turn_adds_its_input_and_its_answer";
}

/// What a kill leaves cannot be broken in memory; every other group has a store that it catches.
#[test]
fn every_group_catches_a_broken_store() {
    let group = |name: &'static str| name.split("::").next().unwrap_or(name);
    let all: BTreeSet<_> = cases().iter().map(|case| group(case.name)).filter(|name| *name != "durability").collect();
    let caught: BTreeSet<_> = CAUGHT.iter().map(|name| group(name)).collect();
    assert_eq!(caught, all);
}
