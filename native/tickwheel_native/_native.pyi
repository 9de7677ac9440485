# Made by native/build.py from the headers.
from typing import Any

class _Lib:
    TW_CALL_COLUMNS_BYTES: int
    TW_CALL_ROOM_BYTES: int
    TW_FOREIGN: int
    TW_NEED_ORDERS: int
    TW_NEED_MORE_TIME: int
    TW_MAX_TIME_MS: int
    TW_MAX_ID: int
    TW_RECORD_MESSAGE: int
    TW_RECORD_TRANSACTION: int
    TW_RECORD_MOVED: int
    TW_RECORD_FILL: int
    TW_RECORD_END: int
    TW_NONE: int
    TW_SCHEDULED: int
    TW_READY: int
    TW_CANCELLED: int
    TW_DAMAGED: int
    TW_EXPIRED: int
    TW_DROPPED: int
    TW_ORDERED: int
    TW_MOST_GAPS: int
    TW_SPARSE_IDS: int
    TW_UNTOUCHED: int
    TW_LEASED: int
    TW_ACKED: int
    TW_WAITING: int
    TW_DEAD: int
    TW_IN_RETRY: int
    TW_ACKING: int
    TW_PARKED: int
    TW_TAKEN: int
    TW_POSTPONED: int
    TW_CALLED: int
    TW_IN_RUN: int
    TW_RESET_ATTEMPTS: int
    TW_WERE_DONE: int
    TW_MAX_BATCH: int
    TW_KEY_PARTITIONS: int
    TW_MAX_KEY_BYTES: int
    TW_MAX_HEADERS_BYTES: int
    TW_TOPIC_PRIORITY: int
    TW_ORDERED_PRIORITY: int
    TW_RESERVED_SHARE: int
    TW_NEW_SHARE: int
    TW_STOP_NEED_MORE: int
    TW_STOP_OTHER_FRAME: int
    TW_STOP_BAD_CRC: int
    TW_STOP_FRAME_TOO_LARGE: int
    TW_STOP_BAD_FRAME: int
    TW_STOP_UNKNOWN_TOPIC: int
    TW_STOP_FORBIDDEN: int
    TW_STOP_NEED_FLUSH: int
    TW_STOP_NEED_DISK: int
    TW_STOP_NEED_ROWS: int
    TW_STOP_NEED_KEYS: int
    TW_STOP_NEED_REPLIES: int
    TW_STOP_NEED_DELIVERIES: int
    TW_READ_END_OF_RANGE: int
    TW_READ_ZEROS: int
    TW_READ_BAD_LENGTH: int
    TW_READ_BAD_CHECKSUM: int
    TW_READ_END_RECORD: int
    TW_READ_FULL: int
    TW_IS_NOT_DUE: int
    TW_IS_DUE: int
    TW_IS_BROKEN: int
    TW_ALREADY_ACKED: int
    TW_STALE_RECEIPT: int
    TW_NOT_FOUND: int
    TW_NEVER_DELIVERED: int
    TW_WAS_CANCELLED: int
    TW_IS_UNKNOWN: int
    TW_IS_SCHEDULED: int
    TW_IS_READY: int
    TW_IS_DELIVERED: int
    TW_IS_DONE: int
    TW_IS_CANCELLED: int
    TW_IS_EXPIRED: int
    TW_BULK_BAD_RECORD: int
    TW_BULK_BAD_ID: int
    TW_BULK_BAD_MESSAGE: int
    TW_BULK_TAKEN_ID: int
    TW_WHEEL_NEVER: int
    TW_WHEEL_LAST_DUE_MS: int
    TW_LEVELS: int
    TW_BLOCK_BITS: int
    TW_SLOTS: int
    TW_STRANDS: int
    TW_CROWDS: int
    TW_WORDS: int
    TW_LEAD_0_MS: int
    TW_LEAD_1_MS: int
    TW_LEAD_2_MS: int
    TW_WHEEL_DAMAGED: int
    TW_WHEEL_BAD_TIME: int
    def tw_call_send(
        self,
        call: Any,
        fd: int,
        correlation: int,
        columns: Any,
        columns_bytes: int,
        key: Any,
        key_bytes: int,
        body: Any,
        body_bytes: int,
        /,
    ) -> int: ...
    def tw_call_wait(self, fd: int, ear_fd: int, timeout_ms: int, /) -> int: ...
    def tw_call_answer(self, call: Any, fd: int, correlation: int, /) -> int: ...
    def tw_crc32c(self, data: Any, bytes: int, seed: int, /) -> int: ...
    def tw_crc32c_table(self, data: Any, bytes: int, seed: int, /) -> int: ...
    def tw_crc32c_is_hardware(self, /) -> int: ...
    def tw_reserve(self, bytes: int, /) -> Any: ...
    def tw_map_file(
        self, base: Any, offset: int, fd: int, file_offset: int, bytes: int, writable: int, /
    ) -> int: ...
    def tw_unmap_to_reserved(self, base: Any, offset: int, bytes: int, /) -> int: ...
    def tw_release(self, base: Any, bytes: int, /) -> int: ...
    def tw_allocate(self, fd: int, offset: int, bytes: int, /) -> int: ...
    def tw_punch_hole(self, fd: int, offset: int, bytes: int, /) -> int: ...
    def tw_sync_map(self, base: Any, bytes: int, /) -> int: ...
    def tw_sync_file_system(self, fd: int, /) -> int: ...
    def tw_words_for_bus_error(self, words: Any, bytes: int, exit_code: int, /) -> int: ...
    def tw_reading_fills_holes(self, fd: int, /) -> int: ...
    def tw_cover(self, base: Any, offset: int, bytes: int, writable: int, /) -> int: ...
    def tw_find_holes(
        self, fd: int, from_: Any, end: int, is_own: int, capacity: int, ranges: Any, /
    ) -> int: ...
    def tw_write_back(self, fd: int, offset: int, bytes: int, /) -> None: ...
    def tw_keep_pace(self, fd: int, start: int, end: int, behind: int, /) -> int: ...
    def tw_log_scan(
        self,
        log: Any,
        position: int,
        end: int,
        wanted: Any,
        capacity: int,
        positions: Any,
        found: Any,
        reason: Any,
        /,
    ) -> int: ...
    def tw_gather(self, log: Any, starts: Any, sizes: Any, n: int, out: Any, /) -> None: ...
    def tw_check_records(self, log: Any, positions: Any, sizes: Any, n: int, ok: Any, /) -> None: ...
    def tw_message_parts(
        self, log: Any, ids: Any, positions: Any, sizes: Any, n: int, is_whole: Any, lengths: Any, /
    ) -> None: ...
    def tw_ingest(
        self,
        store: Any,
        data: Any,
        bytes: int,
        now_ms: int,
        replies: Any,
        replies_capacity: int,
        result: Any,
        /,
    ) -> None: ...
    def tw_unsend(self, store: Any, first_id: int, staging_bytes: int, /) -> None: ...
    def tw_send_check(
        self, store: Any, payload: Any, bytes: int, now_ms: int, codes: Any, earlier: Any, log_bytes: Any, /
    ) -> int: ...
    def tw_log_verify(self, log: Any, position: int, end: int, counts: Any, reason: Any, /) -> int: ...
    def tw_log_append(self, store: Any, type: int, aux: int, payload: Any, bytes: int, /) -> int: ...
    def tw_group_begin(
        self, store: Any, type: int, aux: int, payload: Any, bytes: int, room: int, /
    ) -> int: ...
    def tw_group_end(self, store: Any, at: int, /) -> None: ...
    def tw_replay(self, store: Any, position: Any, end: int, need: Any, /) -> int: ...
    def tw_keys_init(self, keys: Any, /) -> None: ...
    def tw_key_hash(self, topic_id: int, key: Any, bytes: int, /) -> int: ...
    def tw_keys_find(self, store: Any, topic_id: int, key: Any, bytes: int, /) -> int: ...
    def tw_keys_remove(self, store: Any, id: int, /) -> int: ...
    def tw_keys_bytes_to_grow(self, store: Any, partition: int, /) -> int: ...
    def tw_keys_grow(self, store: Any, partition: int, freed_offset: Any, freed_bytes: Any, /) -> int: ...
    def tw_keys_bytes_to_resize(self, store: Any, capacity: int, /) -> int: ...
    def tw_keys_resize(
        self, store: Any, partition: int, capacity: int, freed_offset: Any, freed_bytes: Any, /
    ) -> int: ...
    def tw_keys_fitting(self, store: Any, partition: int, /) -> int: ...
    def tw_keys_capacity_for(self, store: Any, partition: int, more: int, /) -> int: ...
    def tw_keys_count(self, keys: Any, /) -> int: ...
    def tw_runs(self, values: Any, epochs: Any, times: Any, n: int, runs: Any, /) -> int: ...
    def tw_runs_end(self, runs: Any, n: int, /) -> int: ...
    def tw_runs_values(self, runs: Any, n: int, /) -> int: ...
    def tw_lookup(
        self, store: Any, ids: Any, versions: Any, n: int, now_ms: int, verdicts: Any, /
    ) -> int: ...
    def tw_still_scheduled(self, store: Any, ids: Any, versions: Any, n: int, still: Any, /) -> int: ...
    def tw_damaged(self, store: Any, ids: Any, n: int, damaged: Any, /) -> int: ...
    def tw_apply_put(self, store: Any, topic_id: int, first_seq: int, runs: Any, n: int, /) -> int: ...
    def tw_due_times(self, store: Any, ids: Any, n: int, due_ms: Any, /) -> None: ...
    def tw_count_lateness(
        self,
        store: Any,
        group_id: int,
        values: Any,
        epochs: Any,
        n: int,
        now_ms: int,
        bounds: Any,
        bounds_count: int,
        counts: Any,
        sum_ms: Any,
        /,
    ) -> int: ...
    def tw_backoff_ms(
        self, ack_wait_ms: int, min_backoff_ms: int, max_backoff_ms: int, id: int, epoch: int, /
    ) -> int: ...
    def tw_select(
        self,
        store: Any,
        group_id: int,
        limit: int,
        limit_bytes: int,
        run_limit: int,
        now_ms: int,
        seqs: Any,
        epochs: Any,
        until_ms: Any,
        frame_bytes: Any,
        need: Any,
        /,
    ) -> int: ...
    def tw_unselect(self, store: Any, group_id: int, seqs: Any, n: int, /) -> None: ...
    def tw_apply_lease(self, store: Any, group_id: int, holder: int, runs: Any, n: int, /) -> int: ...
    def tw_deliver_frame(
        self,
        store: Any,
        group_id: int,
        subscription: int,
        seqs: Any,
        n: int,
        frame: Any,
        frame_capacity: int,
        /,
    ) -> int: ...
    def tw_ack_check(
        self, store: Any, group_id: int, payload: Any, n: int, seqs: Any, epochs: Any, codes: Any, /
    ) -> int: ...
    def tw_unmark_acks(self, store: Any, group_id: int, seqs: Any, n: int, /) -> None: ...
    def tw_apply_ack(self, store: Any, group_id: int, runs: Any, n: int, /) -> int: ...
    def tw_apply_dead(self, store: Any, group_id: int, runs: Any, n: int, /) -> int: ...
    def tw_apply_nack(self, store: Any, group_id: int, runs: Any, n: int, /) -> int: ...
    def tw_apply_redeliver(self, store: Any, group_id: int, runs: Any, n: int, how: int, /) -> int: ...
    def tw_apply_seek(self, store: Any, group_id: int, start_seq: int, /) -> None: ...
    def tw_expire(
        self,
        store: Any,
        group_id: int,
        seqs: Any,
        epochs: Any,
        n: int,
        now_ms: int,
        exhausted: Any,
        exhausted_count: Any,
        /,
    ) -> int: ...
    def tw_requeue(self, store: Any, group_id: int, seqs: Any, n: int, /) -> None: ...
    def tw_held_by(
        self, store: Any, group_id: int, holder: int, from_seq: Any, seqs: Any, epochs: Any, capacity: int, /
    ) -> int: ...
    def tw_apply_release(self, store: Any, group_id: int, runs: Any, n: int, /) -> int: ...
    def tw_apply_return(self, store: Any, group_id: int, runs: Any, n: int, time_ms: int, /) -> int: ...
    def tw_orders_move(self, store: Any, group_id: int, table: Any, capacity: int, /) -> None: ...
    def tw_orders_release(self, store: Any, group_id: int, /) -> None: ...
    def tw_orders_resume(self, store: Any, group_id: int, /) -> None: ...
    def tw_judge_all(self, store: Any, ids: Any, n: int, verdicts: Any, /) -> None: ...
    def tw_apply_end(self, store: Any, ids: Any, n: int, state: int, /) -> int: ...
    def tw_apply_reschedule(self, store: Any, runs: Any, n: int, priority: int, /) -> int: ...
    def tw_bulk_build(
        self, bulk: Any, order: Any, n: int, first_id: int, out: Any, capacity: int, bytes: Any, /
    ) -> int: ...
    def tw_bulk_hash(self, at: Any, data: Any, n: int, hashes: Any, /) -> None: ...
    def tw_bulk_check(
        self, store: Any, at: Any, end: int, next_id: Any, end_id: int, limit: int, filled: Any, /
    ) -> int: ...
    def tw_bulk_order(
        self, store: Any, first_id: int, n: int, ids: Any, hashes: Any, count: Any, /
    ) -> None: ...
    def tw_bulk_enter(
        self,
        store: Any,
        ids: Any,
        hashes: Any,
        n: int,
        duplicates: Any,
        earlier: Any,
        count: Any,
        need: Any,
        /,
    ) -> int: ...
    def tw_bulk_racers(
        self, store: Any, from_id: int, n: int, first_id: int, end_id: int, duplicates: Any, earlier: Any, /
    ) -> int: ...
    def tw_bulk_forget(self, store: Any, ids: Any, n: int, with_keys: int, /) -> None: ...
    def tw_bulk_adopt(self, store: Any, first_id: int, n: int, base: int, /) -> int: ...
    def tw_finish_frame(self, frame: Any, payload_bytes: int, type: int, correlation: int, /) -> int: ...
    def tw_scheduled(
        self, store: Any, from_id: Any, end_id: int, capacity: int, due_ms: Any, ids: Any, versions: Any, /
    ) -> int: ...
    def tw_rows_used(self, store: Any, from_id: int, end_id: int, first: Any, last: Any, /) -> int: ...
    def tw_rebuild_topics(self, store: Any, /) -> int: ...
    def tw_rebuild_keys(self, store: Any, from_id: Any, end_id: int, need: Any, /) -> int: ...
    def tw_skip_to_start(self, store: Any, group_id: int, /) -> None: ...
    def tw_rebuild_group(self, store: Any, group_id: int, /) -> int: ...
    def tw_rebuild_orders(self, store: Any, group_id: int, from_seq: Any, /) -> int: ...
    def tw_leased(
        self,
        store: Any,
        group_id: int,
        from_seq: Any,
        capacity: int,
        until_ms: Any,
        seqs: Any,
        epochs: Any,
        /,
    ) -> int: ...
    def tw_is_dead(self, store: Any, id: int, now_ms: int, /) -> int: ...
    def tw_purge_plan(
        self,
        store: Any,
        at: Any,
        limit: int,
        end: int,
        now_ms: int,
        capacity: int,
        dead: Any,
        damaged: Any,
        result: Any,
        /,
    ) -> int: ...
    def tw_apply_moved(self, store: Any, position: int, need: Any, /) -> int: ...
    def tw_purge_count(self, store: Any, ids: Any, n: int, of_topics: Any, of_groups: Any, /) -> None: ...
    def tw_purge_list(self, store: Any, from_: Any, to: int, capacity: int, ids: Any, /) -> int: ...
    def tw_apply_purged(self, store: Any, from_: int, to: int, /) -> int: ...
    def tw_purge_survey(
        self,
        store: Any,
        from_id: int,
        end_id: int,
        now_ms: int,
        first: int,
        segment_bytes: int,
        segments: int,
        live: Any,
        live_bytes: Any,
        dead: Any,
        /,
    ) -> None: ...
    def tw_lowest_arrival(self, store: Any, topic_id: int, /) -> int: ...
    def tw_lowest_delivery(self, store: Any, group_id: int, /) -> int: ...
    def tw_raise_first_seq(self, store: Any, topic_id: int, limit: int, /) -> int: ...
    def tw_raise_first_id(self, store: Any, limit: int, /) -> int: ...
    def tw_sync_thread_start(self, told_fd: int, /) -> Any: ...
    def tw_sync_thread_begin(self, thread: Any, fds: Any, count: int, /) -> None: ...
    def tw_sync_thread_ended(self, thread: Any, took_ns: Any, /) -> int: ...
    def tw_sync_thread_stop(self, thread: Any, /) -> None: ...
    def tw_sync_thread_free(self, thread: Any, /) -> None: ...
    def tw_wheel_init(self, wheel: Any, tick: int, /) -> None: ...
    def tw_wheel_room(self, wheel: Any, log_capacity: int, /) -> int: ...
    def tw_wheel_link(
        self,
        wheel: Any,
        log: Any,
        log_capacity: int,
        due_ms: Any,
        ref: Any,
        epoch: Any,
        owner: Any,
        count: int,
        /,
    ) -> int: ...
    def tw_wheel_turn(
        self, wheel: Any, log: Any, target: int, out: Any, budget: int, crowd_limit: int, more: Any, /
    ) -> int: ...
    def tw_wheel_walk(
        self, wheel: Any, log: Any, index: int, ref: Any, epoch: Any, owner: Any, limit: int, /
    ) -> int: ...
    def tw_wheel_next_event(self, wheel: Any, /) -> int: ...
    def tw_forecast(
        self,
        store: Any,
        timers: Any,
        n: int,
        tick: int,
        until_ms: Any,
        horizons: int,
        seen: Any,
        counts: Any,
        /,
    ) -> None: ...

ffi: Any
lib: _Lib
