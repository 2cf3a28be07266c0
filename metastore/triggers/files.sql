-- Files: one with a live segment is never condemned, and a condemned one never gets a segment.
CREATE OR REPLACE FUNCTION cairn.refuse_file() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'CA003', MESSAGE =
        'physical_files: ' || TG_ARGV[0] || ' [' || cairn.about(to_jsonb(NEW)) || ', '
        || NEW.status || ', ' || NEW.live_segments || ' live segments]';
END $$;

CREATE OR REPLACE TRIGGER guard_condemn BEFORE UPDATE ON cairn.physical_files FOR EACH ROW
WHEN (OLD.status <> 'CONDEMNED' AND NEW.status = 'CONDEMNED' AND NEW.live_segments > 0)
EXECUTE FUNCTION cairn.refuse_file('a file with live segments cannot be condemned');

CREATE OR REPLACE TRIGGER guard_new_segments BEFORE UPDATE ON cairn.physical_files FOR EACH ROW
WHEN (NEW.live_segments > OLD.live_segments AND NEW.status IN ('CONDEMNED', 'DELETED'))
EXECUTE FUNCTION cairn.refuse_file('no segment can be made in a condemned or deleted file');

CREATE OR REPLACE TRIGGER guard_sealed_size BEFORE UPDATE ON cairn.physical_files FOR EACH ROW
WHEN (NEW.status = 'SEALED' AND NEW.size_bytes IS NULL)
EXECUTE FUNCTION cairn.refuse_file('a sealed file has a size');

CREATE OR REPLACE TRIGGER guard_new_counters BEFORE INSERT ON cairn.physical_files FOR EACH ROW
WHEN (NEW.live_segments <> 0 OR NEW.live_bytes <> 0)
EXECUTE FUNCTION cairn.refuse_file('live counters follow the segments and start at 0');

CREATE OR REPLACE TRIGGER guard_counters BEFORE UPDATE ON cairn.physical_files FOR EACH ROW
WHEN (
    (OLD.live_segments, OLD.live_bytes) IS DISTINCT FROM (NEW.live_segments, NEW.live_bytes)
    AND pg_trigger_depth() = 0
)
EXECUTE FUNCTION cairn.refuse_file('live counters follow the segments and cannot be set');
