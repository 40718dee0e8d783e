package coordcontrol.wake;

import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The source that wakes the subtasks of one operator: one row for each of them, in epochs that have something for them.
 *
 * <p>Who is woken in an epoch is part of the offset, which Spark makes durable before it runs the epoch; so an epoch that
 * is run again wakes the same. Between epochs Spark asks for the newest offset. While nothing waits the answer is a look
 * at a flag that the driver's Python sets; only then is Python asked, on the thread of the stream.
 *
 * <p>A row is the number of a subtask plus the parallelism: it meets the subtask's own rows, whose number is below that,
 * and can be told from them. Executors need no class of ours: rows and their reader are those of Spark's memory source.
 *
 * <p>Compiled in the driver by Janino, the compiler that Spark uses for its own code. Janino knows types without their
 * parameters only, so none are written here.
 *
 * <p>Threads: any.
 */
public final class WakeSource implements TableProvider {
    private static final String RUN = "coord_control.run";
    /** The run of a query whose plan is only compared with its state: nothing is woken. */
    private static final String CHECK = "check";

    /** By the key of an operator: whether subtasks may have to be woken. The driver's Python sets it. */
    public static final Map WAITING = new ConcurrentHashMap();
    /**
     * What answers: gets "KEY RUN", and returns the numbers of the subtasks to wake, with commas between them. A question
     * mark means that it is not known, and that the next trigger has to ask again.
     */
    public static volatile Function source;

    /** Returns the streaming rows that wake an operator; called by the driver's Python. */
    public static Dataset read(SparkSession session, String key, String operator, long parallelism) {
        Thread thread = Thread.currentThread();
        ClassLoader before = thread.getContextClassLoader();
        // Spark looks for the class of a source by the loader of the thread.
        thread.setContextClassLoader(WakeSource.class.getClassLoader());
        try {
            return (Dataset) session.readStream()
                    .format(WakeSource.class.getName())
                    .option("key", key)
                    .option("operator", operator)
                    .option("parallelism", parallelism)
                    .load();
        } finally {
            thread.setContextClassLoader(before);
        }
    }

    private static String nameOf(String operator) {
        return "coord_control.wake(" + operator + ")";
    }

    private static StructType rows() {
        return new StructType().add("subtask", DataTypes.IntegerType, false);
    }

    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return rows();
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return new Rows((String) properties.get("operator"));
    }

    /** One operator's rows, for all queries that Spark makes of the frame. */
    public static final class Rows implements Table, SupportsRead {
        private final String operator;

        Rows(String operator) {
            this.operator = operator;
        }

        public String name() {
            return nameOf(operator);
        }

        public StructType schema() {
            return rows();
        }

        public Set capabilities() {
            return EnumSet.of(TableCapability.MICRO_BATCH_READ);
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new Reading(operator, options.get("key"), Integer.parseInt(options.get("parallelism")));
        }
    }

    /** Makes the stream of a run. */
    public static final class Reading implements ScanBuilder, Scan {
        private final String operator;
        private final String key;
        private final int parallelism;

        Reading(String operator, String key, int parallelism) {
            this.operator = operator;
            this.key = key;
            this.parallelism = parallelism;
        }

        public Scan build() {
            return this;
        }

        public StructType readSchema() {
            return rows();
        }

        public String description() {
            return nameOf(operator);
        }

        public MicroBatchStream toMicroBatchStream(String checkpoint) {
            return new Stream(operator, key, parallelism);
        }
    }

    /** The source in one run of a query. */
    public static final class Stream implements MicroBatchStream, SupportsTriggerAvailableNow {
        private final String operator;
        private final String key;
        private final int parallelism;
        private boolean isFirst = true;
        private boolean isLimited = false;
        private boolean hasWoken = false;

        Stream(String operator, String key, int parallelism) {
            this.operator = operator;
            this.key = key;
            this.parallelism = parallelism;
        }

        /** What Spark's progress calls it. */
        public String toString() {
            return nameOf(operator);
        }

        public Offset initialOffset() {
            return new Woken(operator, 0, "");
        }

        public Offset deserializeOffset(String json) {
            return Woken.of(operator, json);
        }

        /** A run over what is available wakes at most once: what its epochs cause is for the next run. */
        public void prepareForTriggerAvailableNow() {
            isLimited = true;
        }

        public Offset latestOffset() {
            throw new UnsupportedOperationException("Spark asks with the offset before");
        }

        /** Returns null if there is nothing new: the offset stays where it is, and no epoch is planned for it. */
        public Offset latestOffset(Offset before, ReadLimit limit) {
            if (isLimited && hasWoken) {
                return null;
            }
            // Taken down before it is asked: what comes meanwhile puts it up again.
            boolean isUp = WAITING.replace(key, Boolean.TRUE, Boolean.FALSE);
            if (!isUp && !isFirst) {
                return null;
            }
            isFirst = false;
            String run = SparkContext.getOrCreate().getLocalProperty(RUN);
            if (run == null || run.equals(CHECK)) {
                return null;
            }
            String subtasks = (String) source.apply(key + " " + run);
            if (subtasks.isEmpty()) {
                return null;
            }
            // Put up until an answer says that nothing waits: an epoch that is not run for some reason loses nothing.
            WAITING.put(key, Boolean.TRUE);
            if (subtasks.equals("?")) {
                return null;
            }
            hasWoken = true;
            return new Woken(operator, ((Woken) before).number + 1, subtasks);
        }

        public InputPartition[] planInputPartitions(Offset before, Offset woken) {
            String[] subtasks = ((Woken) woken).subtasks();
            UnsafeRow[] rows = new UnsafeRow[subtasks.length];
            int count = 0;
            for (int index = 0; index < subtasks.length; index++) {
                int subtask = Integer.parseInt(subtasks[index]);
                if (subtask < parallelism) { // a restore may have made fewer of them; then they have no events in it
                    UnsafeRow row = new UnsafeRow(1);
                    row.pointTo(new byte[16], 16);
                    row.setInt(0, subtask + parallelism);
                    rows[count++] = row;
                }
            }
            UnsafeRow[] found = new UnsafeRow[count];
            System.arraycopy(rows, 0, found, 0, count);
            return count == 0 ? new InputPartition[0] : new InputPartition[] {MemoryRows.partition(found)};
        }

        public PartitionReaderFactory createReaderFactory() {
            return MemoryRows.factory();
        }

        public void commit(Offset end) {}

        public void stop() {}
    }

    /** Who is woken in an epoch, and a number that makes it differ from the epoch before. */
    public static final class Woken extends Offset {
        private static final Pattern FORM =
                Pattern.compile(
                        "\\{\"wake\":1,\"operator\":\"([^\"]+)\",\"number\":(\\d{1,18}),\"subtasks\":\\[([0-9,]*)\\]\\}");

        final long number;
        private final String operator;
        private final String subtasks;

        Woken(String operator, long number, String subtasks) {
            this.operator = operator;
            this.number = number;
            this.subtasks = subtasks;
        }

        static Woken of(String operator, String json) {
            Matcher found = FORM.matcher(json);
            if (!found.matches() || !found.group(1).equals(operator)) {
                throw new IllegalStateException(
                        "the sources of this query have changed: " + json + " is the offset of another source than "
                                + nameOf(operator) + "; read the same sources in the same order");
            }
            return new Woken(operator, Long.parseLong(found.group(2)), found.group(3));
        }

        String[] subtasks() {
            return subtasks.isEmpty() ? new String[0] : subtasks.split(",");
        }

        public String json() {
            return "{\"wake\":1,\"operator\":\"" + operator + "\",\"number\":" + number + ",\"subtasks\":[" + subtasks + "]}";
        }
    }

    /** Rows of Spark's memory source, whose classes every executor has; found by name, because they are internal. */
    private static final class MemoryRows {
        private static final String PREFIX = "org.apache.spark.sql.execution.streaming.runtime.MemoryStream";

        static InputPartition partition(UnsafeRow[] rows) {
            try {
                Object[] arguments = {rows};
                return (InputPartition) found("InputPartition").getConstructors()[0].newInstance(arguments);
            } catch (ReflectiveOperationException error) {
                throw unsupported(error);
            }
        }

        static PartitionReaderFactory factory() {
            try {
                return (PartitionReaderFactory) found("ReaderFactory$").getField("MODULE$").get(null);
            } catch (ReflectiveOperationException error) {
                throw unsupported(error);
            }
        }

        private static Class found(String name) throws ReflectiveOperationException {
            return Class.forName(PREFIX + name, true, UnsafeRow.class.getClassLoader());
        }

        private static IllegalStateException unsupported(ReflectiveOperationException error) {
            return new IllegalStateException(
                    "operators with wake=True do not work with Spark " + SparkContext.getOrCreate().version()
                            + ", whose memory source has other classes",
                    error);
        }
    }
}
