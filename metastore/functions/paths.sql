-- Returns the directory that a file lies in: all before the last slash of its path.
CREATE OR REPLACE FUNCTION cairn.directory_of(path text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN left(path, length(path) - strpos(reverse(path), '/'));
