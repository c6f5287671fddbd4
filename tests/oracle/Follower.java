import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.requests.FetchRequest;
import org.apache.kafka.server.LeaderEndPoint;
import org.apache.kafka.server.PartitionFetchState;
import org.apache.kafka.server.ReplicaFetch;
import org.apache.kafka.server.ResultWithPartitions;
import org.apache.kafka.server.common.OffsetAndEpoch;
import org.apache.kafka.server.network.BrokerEndPoint;
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Kafka's own fetcher thread, whose log is no more than its epochs and its end. The leader answers a
 * fetch as Partition.readRecords does. Nothing is ever appended: what is looked at are the cuts.
 */
public class Follower extends kafka.server.AbstractFetcherThread {
    private static final TopicPartition PARTITION = new TopicPartition("t", 0);

    /** Offsets of the cuts, in order; a restart is the negative of its offset, less one. */
    public final List cuts;
    private final LeaderEpochFileCache epochs;
    private final long firstSegment;
    private long start;
    private long end;

    public Follower(
        Leader leader, LeaderEpochFileCache epochs, long firstSegment, long start, long end, List cuts
    ) {
        super("follower", "follower", leader, new kafka.server.FailedPartitions(), null, 0, false,
            new BrokerTopicStats(false));
        this.epochs = epochs;
        this.firstSegment = firstSegment;
        this.start = start;
        this.end = end;
        this.cuts = cuts;
    }

    /** Fetch until a fetch is answered by records; return the log's end, or its negative less one. */
    public long follow(long highWatermark, int leaderEpoch, int mostRounds) {
        long offset = epochs.latestEpoch().isPresent() ? end : highWatermark;
        Map states = new HashMap();
        states.put(PARTITION, new kafka.server.InitialFetchState(
            scala.Option.apply(Uuid.ONE_UUID), ((Leader) leader()).brokerEndPoint(), leaderEpoch, offset));
        addPartitions(scala.jdk.javaapi.CollectionConverters.asScala(states));
        Leader leader = (Leader) leader();
        for (int round = 0; round < mostRounds && !leader.isRead; round++) {
            doWork();
        }
        return leader.isRead ? end : -1 - end;
    }

    public void truncate(TopicPartition partition, kafka.server.OffsetTruncationState state) {
        long offset = state.offset();
        if (offset < end) {
            cuts.add(Long.valueOf(offset));
            end = offset;
            if (offset < firstSegment) {
                epochs.clear();
            }
            start = Math.min(start, offset);
        }
        epochs.truncateFromEndAsyncFlush(offset);
    }

    public void truncateFullyAndStartAt(TopicPartition partition, long offset) {
        cuts.add(Long.valueOf(-1 - offset));
        epochs.clear();
        start = offset;
        end = offset;
    }

    public Optional latestEpoch(TopicPartition partition) {
        return epochs.latestEpoch();
    }

    public long logStartOffset(TopicPartition partition) {
        return start;
    }

    public long logEndOffset(TopicPartition partition) {
        return end;
    }

    public Optional endOffsetForEpoch(TopicPartition partition, int epoch) {
        Map.Entry entry = epochs.endOffsetFor(epoch, end);
        long found = ((Long) entry.getValue()).longValue();
        if (found == -1L) {
            return Optional.empty();
        }
        return Optional.of(new OffsetAndEpoch(found, ((Integer) entry.getKey()).intValue()));
    }

    public boolean shouldFetchFromLastTieredOffset(TopicPartition partition, long leaderEnd, long replicaEnd) {
        return false;
    }

    public scala.Option processPartitionData(
        TopicPartition partition, long fetchOffset, int epoch, FetchResponseData.PartitionData data
    ) {
        return scala.Option.empty();
    }

    /** A leader that has been elected: its new epoch begins at its log's end. */
    public static class Leader implements LeaderEndPoint {
        /** Whether a fetch was answered by records. */
        public boolean isRead = false;
        private final LeaderEpochFileCache epochs;
        private final long start;
        private final long end;
        private final int epoch;

        public Leader(LeaderEpochFileCache epochs, long start, long end, int epoch) {
            this.epochs = epochs;
            this.start = start;
            this.end = end;
            this.epoch = epoch;
            epochs.assign(epoch, end);
        }

        public boolean isTruncationOnFetchSupported() {
            return true;
        }

        public void initiateClose() {
        }

        public void close() {
        }

        public BrokerEndPoint brokerEndPoint() {
            return new BrokerEndPoint(1, "localhost", 9092);
        }

        public ResultWithPartitions buildFetch(Map states) {
            Map wanted = new HashMap();
            PartitionFetchState state = (PartitionFetchState) states.get(PARTITION);
            if (state != null && state.isReadyForFetch()) {
                wanted.put(PARTITION, new FetchRequest.PartitionData(
                    Uuid.ONE_UUID, state.fetchOffset(), 0L, 1024,
                    Optional.of(Integer.valueOf(state.currentLeaderEpoch())), state.lastFetchedEpoch()));
            }
            Optional fetch = Optional.empty();
            if (!wanted.isEmpty()) {
                fetch = Optional.of(new ReplicaFetch(
                    wanted, FetchRequest.Builder.forReplica((short) 16, 2, -1L, 0, 1, wanted)));
            }
            return new ResultWithPartitions(fetch, new HashSet());
        }

        public Map fetch(FetchRequest.Builder request) {
            FetchRequest.PartitionData wanted =
                (FetchRequest.PartitionData) request.fetchData().get(PARTITION);
            FetchResponseData.PartitionData answer = new FetchResponseData.PartitionData();
            answer.setPartitionIndex(0);
            answer.setRecords(MemoryRecords.EMPTY);
            long offset = wanted.fetchOffset;
            boolean diverges = false;
            boolean isOutOfRange = offset < start;
            if (wanted.lastFetchedEpoch.isPresent()) {
                int last = ((Integer) wanted.lastFetchedEpoch.get()).intValue();
                Map.Entry entry = epochs.endOffsetFor(last, end);
                int found = ((Integer) entry.getKey()).intValue();
                long foundEnd = ((Long) entry.getValue()).longValue();
                if (found == -1 || foundEnd == -1L) {
                    isOutOfRange = true;
                } else if (!isOutOfRange && (found < last || foundEnd < offset)) {
                    FetchResponseData.EpochEndOffset diverging = new FetchResponseData.EpochEndOffset();
                    diverging.setEpoch(found);
                    diverging.setEndOffset(foundEnd);
                    answer.setDivergingEpoch(diverging);
                    diverges = true;
                }
            }
            if (!diverges && (isOutOfRange || offset > end)) {
                answer.setErrorCode(Errors.OFFSET_OUT_OF_RANGE.code());
            } else if (!diverges) {
                isRead = true;
            }
            Map answers = new HashMap();
            answers.put(PARTITION, answer);
            return answers;
        }

        public OffsetAndEpoch fetchEarliestOffset(TopicPartition partition, int current) {
            return new OffsetAndEpoch(start, epoch);
        }

        public OffsetAndEpoch fetchLatestOffset(TopicPartition partition, int current) {
            return new OffsetAndEpoch(end, epoch);
        }

        public OffsetAndEpoch fetchEarliestLocalOffset(TopicPartition partition, int current) {
            return new OffsetAndEpoch(start, epoch);
        }

        public OffsetAndEpoch fetchEarliestPendingUploadOffset(TopicPartition partition, int current) {
            return new OffsetAndEpoch(start, epoch);
        }

        public Map fetchEpochEndOffsets(Map partitions) {
            return Collections.emptyMap();
        }
    }
}
