package coordcontrol.live;

import java.io.NotSerializableException;
import java.io.ObjectOutputStream;
import java.io.Serializable;
import java.lang.reflect.Method;
import java.net.URLDecoder;
import java.time.Instant;
import java.time.LocalDate;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.api.java.UDF0;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.ScalaUDF;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.types.DataType;
import scala.Function0;
import scala.Function1;
import scala.collection.Iterator;
import scala.runtime.AbstractFunction0;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;

/**
 * Replaces every use of a live value by a literal when an epoch is planned; nothing of it is left for executors.
 *
 * <p>The driver's Python is asked once per query, run and epoch, on the thread of the stream; whatever is planned or
 * evaluated in the same epoch afterwards gets the same answer.
 *
 * <p>Compiled in the driver by Janino, the compiler that Spark uses for its own code. Janino knows types without their
 * parameters only, so none are written here.
 *
 * <p>Threads: any.
 */
public final class LiveRule extends Rule {
    private static final String EPOCH = "streaming.sql.batchId";
    private static final String QUERY = "sql.streaming.queryId";
    private static final String RUN = "coord_control.run";
    /** The run of a query whose plan is only compared with its state: it has no values. */
    private static final String CHECK = "check";

    /** Functions whose uses are replaced; the driver adds to it. */
    public static final Map NAMES = new ConcurrentHashMap();

    private static final Map ANSWERS = new ConcurrentHashMap(); // by query: of its newest epoch
    /**
     * What answers: gets "QUERY RUN EPOCH", and returns "NAME=VALUE&NAME=VALUE", encoded as a form; a null has no equals
     * sign. An answer that begins with an exclamation mark is the text of an error.
     */
    public static volatile Function source;

    public TreeNode apply(TreeNode plan) {
        return ((LogicalPlan) plan).transformAllExpressions(new Replacement());
    }

    /** Lets each use of a function in a plan know the epoch in which it was made. */
    public static void noteEpochs(FunctionRegistry registry, String name) {
        Iterator identifiers = registry.listFunction().iterator();
        while (identifiers.hasNext()) {
            FunctionIdentifier identifier = (FunctionIdentifier) identifiers.next();
            if (identifier.funcName().equalsIgnoreCase(name)) {
                Function1 builder = (Function1) registry.lookupFunctionBuilder(identifier).get();
                ExpressionInfo info = (ExpressionInfo) registry.lookupFunction(identifier).get();
                registry.dropFunction(identifier); // Spark warns of one that is replaced
                registry.registerFunction(identifier, info, new Builder(name, builder));
            }
        }
    }

    /**
     * Returns the value of a live value in the epoch that this thread plans, as Spark's own types.
     *
     * @param made the question of the epoch in which its frame was made; empty: in none; null: not known
     */
    static Object value(String name, DataType type, String made) {
        SparkContext context = SparkContext.getOrCreate();
        String epoch = context.getLocalProperty(EPOCH);
        String run = context.getLocalProperty(RUN);
        if (epoch == null || run == null) {
            throw new IllegalStateException(
                    name + ": a live value is known only in an epoch of a query that was started with job.start(), and on"
                            + " the thread that runs the epoch or one that was made with pyspark.InheritableThread; elsewhere"
                            + " in the driver's program read it with job.live(...).get()");
        }
        if (run.equals(CHECK)) {
            return null;
        }
        refuseToKeep(name);
        String query = context.getLocalProperty(QUERY);
        String question = question(context);
        if (made != null && !made.equals(question) && !isPlannedByStream()) {
            throw new IllegalStateException(
                    name + ": this frame was made outside of the epoch, and Spark would keep the value of the first epoch"
                            + " in it; make the frame inside of the foreachBatch function");
        }
        Answer answer = (Answer) ANSWERS.get(query);
        if (answer == null || !answer.question.equals(question)) {
            answer = new Answer(question, (String) source.apply(question));
            ANSWERS.put(query, answer);
        }
        if (!answer.values.containsKey(name)) {
            throw new IllegalStateException(name + ": the job of this query has no such live value");
        }
        return typed((String) answer.values.get(name), type, name);
    }

    /** Returns what tells the epoch of this thread from all others; empty outside of epochs. */
    private static String question(SparkContext context) {
        String epoch = context.getLocalProperty(EPOCH);
        String run = context.getLocalProperty(RUN);
        return epoch == null || run == null ? "" : context.getLocalProperty(QUERY) + " " + run + " " + epoch;
    }

    /** Whether Spark plans the query itself, whose frame was made before it was started, and not a frame of a function. */
    private static boolean isPlannedByStream() {
        StackTraceElement[] frames = Thread.currentThread().getStackTrace();
        boolean isStream = false;
        for (int index = 0; index < frames.length; index++) {
            String owner = frames[index].getClassName();
            if (owner.indexOf("ForeachBatch") >= 0) {
                return false;
            }
            isStream |= owner.indexOf("MicroBatchExecution") >= 0;
        }
        return isStream;
    }

    private static Object typed(String text, DataType type, String name) {
        if (text == null) {
            return null;
        }
        switch (type.simpleString()) {
            case "boolean":
                return Boolean.valueOf(text);
            case "bigint":
                return Long.valueOf(text);
            case "double":
                return Double.valueOf(text);
            case "date":
                return LocalDate.parse(text); // not java.sql's, which count in the Julian calendar before 1582
            case "timestamp":
                return Instant.parse(text);
            case "string":
                return text;
            default:
                throw new IllegalStateException(name + ": a live value has no type " + type.simpleString());
        }
    }

    private static void refuseToKeep(String name) {
        StackTraceElement[] frames = Thread.currentThread().getStackTrace();
        for (int index = 0; index < frames.length; index++) {
            String method = frames[index].getMethodName();
            String owner = frames[index].getClassName();
            boolean isCache = owner.startsWith("org.apache.spark.sql.execution.CacheManager");
            boolean isCheckpoint = method.equals("checkpoint") || method.equals("localCheckpoint");
            if (isCache || (isCheckpoint && owner.endsWith("Dataset"))) {
                throw new IllegalStateException(
                        name + ": what depends on a live value cannot be cached or checkpointed, because it would keep"
                                + " the value of this epoch; cache what it is computed from");
            }
        }
    }

    private static final class Answer {
        final String question;
        final Map values = new HashMap();

        Answer(String question, String form) {
            this.question = question;
            if (form.startsWith("!")) {
                throw new IllegalStateException(form.substring(1));
            }
            String[] pairs = form.split("&");
            for (int index = 0; index < pairs.length; index++) {
                String[] parts = pairs[index].split("=", 2);
                values.put(parts[0], parts.length == 1 ? null : decoded(parts[1]));
            }
        }

        private static String decoded(String text) {
            return URLDecoder.decode(text, java.nio.charset.StandardCharsets.UTF_8);
        }
    }

    private static final class Replacement extends AbstractPartialFunction {
        public boolean isDefinedAt(Object expression) {
            return nameOf(expression) != null;
        }

        public Object applyOrElse(Object expression, Function1 otherwise) {
            String name = nameOf(expression);
            if (name == null) {
                return otherwise.apply(expression);
            }
            ScalaUDF use = (ScalaUDF) expression;
            String made = use.function() instanceof Made ? ((Made) use.function()).made : null;
            return Literal.create(value(name, use.dataType(), made), use.dataType());
        }

        private static String nameOf(Object expression) {
            if (!(expression instanceof ScalaUDF) || !((ScalaUDF) expression).udfName().isDefined()) {
                return null;
            }
            String name = (String) ((ScalaUDF) expression).udfName().get();
            return NAMES.containsKey(name) ? name : null;
        }
    }

    /**
     * Makes the uses of a live value in plans, and notes in which epoch each was made. A frame keeps its plan, and with it
     * the literal of the epoch that has planned it first; so no later epoch may use it.
     */
    public static final class Builder extends AbstractFunction1 {
        private final String name;
        private final Function1 builder;

        public Builder(String name, Function1 builder) {
            this.name = name;
            this.builder = builder;
        }

        public Object apply(Object children) {
            ScalaUDF use = (ScalaUDF) builder.apply(children);
            try {
                Method[] methods = ScalaUDF.class.getMethods();
                for (int index = 0; index < methods.length; index++) {
                    if (methods[index].getName().equals("copy")) {
                        return methods[index].invoke(use, parts(use, methods[index].getParameterCount()));
                    }
                }
                throw new NoSuchMethodException("copy");
            } catch (ReflectiveOperationException error) {
                throw new IllegalStateException(
                        "live values do not work with Spark " + SparkContext.getOrCreate().version(), error);
            }
        }

        private Object[] parts(ScalaUDF use, int count) throws ReflectiveOperationException {
            Object[] parts = new Object[count];
            parts[0] = new Made(name, use.function(), question(SparkContext.getOrCreate()));
            for (int index = 1; index < count; index++) {
                parts[index] = ScalaUDF.class.getMethod("copy$default$" + (index + 1)).invoke(use);
            }
            return parts;
        }
    }

    /** What a use evaluates, with the epoch in which it was made; two of the same epoch are the same to Spark. */
    public static final class Made extends AbstractFunction0 implements Serializable {
        /** Of the use that this thread evaluates. */
        static final ThreadLocal EVALUATED = new ThreadLocal();

        private final String name;
        private final Object function;
        final String made;

        Made(String name, Object function, String made) {
            this.name = name;
            this.function = function;
            this.made = made;
        }

        public Object apply() {
            EVALUATED.set(made);
            try {
                return ((Function0) function).apply();
            } finally {
                EVALUATED.remove();
            }
        }

        public boolean equals(Object other) {
            return other instanceof Made && ((Made) other).name.equals(name) && ((Made) other).made.equals(made);
        }

        public int hashCode() {
            return name.hashCode() * 31 + made.hashCode();
        }
    }

    /**
     * A live value in a plan, until the rule replaces it.
     *
     * <p>Spark evaluates it itself only where it computes a relation of constants while it plans; then it is on the
     * thread of the stream, and the answer is that of the rule. It never travels to an executor.
     */
    public static final class Use implements UDF0 {
        private static final String NOT_REPLACED =
                ": this live value was not replaced when the epoch was planned; use it in a session of the job: the one"
                        + " that the job was made with, or that of the query's frame";

        private final String name;
        private final transient DataType type;

        public Use(String name, DataType type) {
            this.name = name;
            this.type = type;
        }

        public Object call() {
            if (TaskContext.get() != null) {
                throw new IllegalStateException(name + NOT_REPLACED);
            }
            return LiveRule.value(name, type, (String) Made.EVALUATED.get());
        }

        private void writeObject(ObjectOutputStream out) throws NotSerializableException {
            throw new NotSerializableException(name + NOT_REPLACED);
        }
    }
}
