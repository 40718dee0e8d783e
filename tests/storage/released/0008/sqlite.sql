-- The tables of version 0008 on SQLite, as its release made them.
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE audit (
    id INTEGER NOT NULL,
    at DATETIME NOT NULL,
    actor VARCHAR(256) NOT NULL,
    host VARCHAR(256) NOT NULL,
    action VARCHAR(64) NOT NULL,
    job VARCHAR(256),
    subject TEXT NOT NULL,
    outcome VARCHAR(32) NOT NULL,
    details JSON NOT NULL,
    CONSTRAINT pk_audit PRIMARY KEY (id)
);
CREATE INDEX ix_audit_at ON audit (at);
CREATE INDEX ix_audit_job ON audit (job, id);
CREATE INDEX ix_audit_subject ON audit (subject, id);
CREATE TABLE jobs (
    id INTEGER NOT NULL,
    name VARCHAR(256) NOT NULL,
    root VARCHAR(4096) NOT NULL,
    folder VARCHAR(4096) NOT NULL,
    created_at DATETIME NOT NULL,
    generation BIGINT NOT NULL,
    state VARCHAR(16) NOT NULL,
    host VARCHAR(256) NOT NULL,
    pid INTEGER NOT NULL,
    driver_started_at DATETIME NOT NULL,
    heartbeat_at DATETIME NOT NULL,
    lease_seconds FLOAT NOT NULL,
    ended_at DATETIME,
    end_reason TEXT NOT NULL,
    is_supervised BOOLEAN NOT NULL,
    log_file VARCHAR(4096),
    spark_version VARCHAR(64) NOT NULL,
    version VARCHAR(64) NOT NULL,
    live JSON,
    agent JSON,
    CONSTRAINT pk_jobs PRIMARY KEY (id),
    CONSTRAINT ck_jobs_state CHECK (state IN ('starting', 'running', 'stopping', 'ended', 'failed')),
    CONSTRAINT uq_jobs_name UNIQUE (name)
);
CREATE TABLE savepoints (
    id INTEGER NOT NULL,
    path VARCHAR(4096) NOT NULL,
    job_name VARCHAR(256),
    checkpoint BIGINT,
    label VARCHAR(128),
    imported BOOLEAN NOT NULL,
    size BIGINT NOT NULL,
    created_at DATETIME,
    recorded_at DATETIME NOT NULL,
    applied_numbers JSON NOT NULL,
    verified_at DATETIME,
    verified_ok BOOLEAN,
    problems JSON NOT NULL,
    CONSTRAINT pk_savepoints PRIMARY KEY (id),
    CONSTRAINT uq_savepoints_path UNIQUE (path)
);
CREATE INDEX ix_savepoints_job ON savepoints (job_name, checkpoint);
CREATE TABLE upkeep (
    duty VARCHAR(64) NOT NULL,
    at DATETIME NOT NULL,
    CONSTRAINT pk_upkeep PRIMARY KEY (duty)
);
CREATE TABLE counters (
    name VARCHAR(64) NOT NULL,
    value BIGINT NOT NULL,
    CONSTRAINT pk_counters PRIMARY KEY (name)
);
INSERT INTO counters (name, value) VALUES ('changes', 0);
CREATE TABLE checkpoint_counts (
    job_id INTEGER NOT NULL,
    kind VARCHAR(16) NOT NULL,
    state VARCHAR(16) NOT NULL,
    checkpoints BIGINT NOT NULL,
    CONSTRAINT pk_checkpoint_counts PRIMARY KEY (job_id, kind, state),
    CONSTRAINT fk_checkpoint_counts_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE TABLE checkpoints (
    job_id INTEGER NOT NULL,
    checkpoint BIGINT NOT NULL,
    kind VARCHAR(16) NOT NULL,
    state VARCHAR(16) NOT NULL,
    label VARCHAR(128),
    "key" VARCHAR(256),
    cause VARCHAR(256) NOT NULL,
    requested_by VARCHAR(256),
    generation BIGINT,
    triggered_at DATETIME NOT NULL,
    finished_at DATETIME,
    duration_seconds FLOAT,
    state_bytes BIGINT NOT NULL,
    new_bytes BIGINT NOT NULL,
    blocked_events BIGINT NOT NULL,
    blocked_seconds FLOAT NOT NULL,
    snapshot_seconds FLOAT NOT NULL,
    path VARCHAR(4096),
    reason VARCHAR(64),
    message TEXT NOT NULL,
    statistics JSON NOT NULL,
    settled_sequence BIGINT,
    CONSTRAINT pk_checkpoints PRIMARY KEY (job_id, checkpoint),
    CONSTRAINT ck_checkpoints_kind CHECK (kind IN ('checkpoint', 'savepoint')),
    CONSTRAINT ck_checkpoints_state CHECK (state IN ('in_progress', 'failed', 'completed', 'discarded')),
    CONSTRAINT fk_checkpoints_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE INDEX ix_checkpoints_newest ON checkpoints (job_id, kind, state, checkpoint);
CREATE INDEX ix_checkpoints_triggered_at ON checkpoints (triggered_at);
CREATE UNIQUE INDEX uq_checkpoints_settled_sequence ON checkpoints (settled_sequence);
CREATE TABLE commands (
    id VARCHAR(36) NOT NULL,
    job_id INTEGER NOT NULL,
    kind VARCHAR(32) NOT NULL,
    "key" VARCHAR(256) NOT NULL,
    operator VARCHAR(256),
    payload JSON NOT NULL,
    state VARCHAR(16) NOT NULL,
    requested_by VARCHAR(256) NOT NULL,
    requested_from VARCHAR(256) NOT NULL,
    requested_at DATETIME NOT NULL,
    expires_at DATETIME NOT NULL,
    generation BIGINT,
    claimed_at DATETIME,
    number BIGINT,
    checkpoint BIGINT,
    progress JSON,
    result JSON,
    error JSON,
    finished_at DATETIME,
    cancel_requested_at DATETIME,
    CONSTRAINT pk_commands PRIMARY KEY (id),
    CONSTRAINT ck_commands_state CHECK (state IN ('pending', 'claimed', 'completed', 'failed', 'refused', 'expired', 'cancelled')),
    CONSTRAINT ck_commands_payload CHECK (length(CAST(payload AS TEXT)) <= 600000),
    CONSTRAINT fk_commands_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE INDEX ix_commands_due ON commands (state, expires_at);
CREATE INDEX ix_commands_newest ON commands (job_id, id);
CREATE INDEX ix_commands_state ON commands (job_id, state, id);
CREATE UNIQUE INDEX uq_commands_key ON commands (job_id, "key");
CREATE UNIQUE INDEX uq_commands_number ON commands (job_id, operator, number);
CREATE TABLE generations (
    job_id INTEGER NOT NULL,
    generation BIGINT NOT NULL,
    host VARCHAR(256) NOT NULL,
    pid INTEGER NOT NULL,
    started_at DATETIME NOT NULL,
    ended_at DATETIME,
    end_reason TEXT NOT NULL,
    is_clean BOOLEAN NOT NULL,
    CONSTRAINT pk_generations PRIMARY KEY (job_id, generation),
    CONSTRAINT fk_generations_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE TABLE live_changes (
    job_id INTEGER NOT NULL,
    name VARCHAR(256) NOT NULL,
    version BIGINT NOT NULL,
    value JSON NOT NULL,
    "by" TEXT NOT NULL,
    at DATETIME NOT NULL,
    since JSON NOT NULL,
    CONSTRAINT pk_live_changes PRIMARY KEY (job_id, name, version),
    CONSTRAINT fk_live_changes_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE INDEX ix_live_changes_newest ON live_changes (job_id, at);
CREATE TABLE operator_samples (
    job_id INTEGER NOT NULL,
    operator VARCHAR(256) NOT NULL,
    resolution_seconds INTEGER NOT NULL,
    at DATETIME NOT NULL,
    blocked_events BIGINT NOT NULL,
    blocked_seconds FLOAT NOT NULL,
    blocked_now_max BIGINT NOT NULL,
    mailbox_max BIGINT NOT NULL,
    closed_max BIGINT NOT NULL,
    events_down BIGINT NOT NULL,
    events_up BIGINT NOT NULL,
    CONSTRAINT pk_operator_samples PRIMARY KEY (job_id, operator, resolution_seconds, at),
    CONSTRAINT fk_operator_samples_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE INDEX ix_operator_samples_at ON operator_samples (resolution_seconds, at);
CREATE TABLE operators (
    job_id INTEGER NOT NULL,
    uid VARCHAR(256) NOT NULL,
    "query" VARCHAR(256) NOT NULL,
    parallelism INTEGER NOT NULL,
    event_types JSON NOT NULL,
    applied_number BIGINT NOT NULL,
    CONSTRAINT pk_operators PRIMARY KEY (job_id, uid),
    CONSTRAINT fk_operators_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE TABLE queries (
    job_id INTEGER NOT NULL,
    name VARCHAR(256) NOT NULL,
    query_id VARCHAR(64) NOT NULL,
    lineage VARCHAR(4096) NOT NULL,
    state VARCHAR(32) NOT NULL,
    epoch BIGINT,
    restarts INTEGER NOT NULL,
    last_failure TEXT NOT NULL,
    updated_at DATETIME NOT NULL,
    CONSTRAINT pk_queries PRIMARY KEY (job_id, name),
    CONSTRAINT fk_queries_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE TABLE query_samples (
    job_id INTEGER NOT NULL,
    "query" VARCHAR(256) NOT NULL,
    resolution_seconds INTEGER NOT NULL,
    at DATETIME NOT NULL,
    epochs INTEGER NOT NULL,
    epoch_last BIGINT,
    rows BIGINT NOT NULL,
    rows_per_second FLOAT,
    batch_seconds_avg FLOAT,
    batch_seconds_max FLOAT,
    state_rows BIGINT,
    lag_seconds FLOAT,
    backlog BIGINT,
    CONSTRAINT pk_query_samples PRIMARY KEY (job_id, "query", resolution_seconds, at),
    CONSTRAINT fk_query_samples_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE INDEX ix_query_samples_at ON query_samples (resolution_seconds, at);
CREATE TABLE recoveries (
    id INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    generation BIGINT NOT NULL,
    "query" VARCHAR(256) NOT NULL,
    cause VARCHAR(64) NOT NULL,
    what TEXT NOT NULL,
    from_epoch BIGINT,
    from_checkpoint BIGINT,
    path VARCHAR(4096),
    started_at DATETIME NOT NULL,
    duration_seconds FLOAT,
    epochs_rerun INTEGER NOT NULL,
    message TEXT NOT NULL,
    sequence BIGINT,
    CONSTRAINT pk_recoveries PRIMARY KEY (id),
    CONSTRAINT fk_recoveries_job_id FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE INDEX ix_recoveries_checkpoint ON recoveries (job_id, from_checkpoint);
CREATE INDEX ix_recoveries_newest ON recoveries (job_id, id);
CREATE INDEX ix_recoveries_started_at ON recoveries (started_at);
CREATE UNIQUE INDEX uq_recoveries_sequence ON recoveries (sequence);
CREATE UNIQUE INDEX uq_recoveries_once ON recoveries (job_id, generation, "query", cause, started_at);
CREATE TABLE checkpoint_details (
    job_id INTEGER NOT NULL,
    checkpoint BIGINT NOT NULL,
    queries JSON NOT NULL,
    subtasks JSON NOT NULL,
    CONSTRAINT pk_checkpoint_details PRIMARY KEY (job_id, checkpoint),
    CONSTRAINT fk_checkpoint_details_job_id_checkpoint FOREIGN KEY(job_id, checkpoint) REFERENCES checkpoints (job_id, checkpoint) ON DELETE CASCADE
);
CREATE TABLE live_values (
    job_id INTEGER NOT NULL,
    name VARCHAR(256) NOT NULL,
    version BIGINT NOT NULL,
    schema JSON NOT NULL,
    uses JSON NOT NULL,
    CONSTRAINT pk_live_values PRIMARY KEY (job_id, name),
    CONSTRAINT fk_live_values_job_id_name_version FOREIGN KEY(job_id, name, version) REFERENCES live_changes (job_id, name, version) ON DELETE CASCADE
);
INSERT INTO alembic_version (version_num) VALUES ('0008') RETURNING version_num;
