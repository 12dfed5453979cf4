-- Takes requests off the stream: their answer is in the rows and in the event stream.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  group    ARGV  then ids of entries, at most 500
-- Returns  how many were there
--
-- Deleted, not only acknowledged: so the stream is as long as what is yet to be done.
--! include keys
redis.call('XACK', REQUESTS, ARGV[1], unpack(ARGV, 2))
return redis.call('XDEL', REQUESTS, unpack(ARGV, 2))
