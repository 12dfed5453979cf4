-- Removes requests that are done: their answer is in the rows and in the event stream. They are deleted, not only
-- acknowledged, so the length of the stream is the work that is left.
--
-- ARGV[1]  group    ARGV[2..]  ids of entries, at most 500
-- Returns  how many were there
--! include keys
redis.call('XACK', REQUESTS, ARGV[1], unpack(ARGV, 2))
return redis.call('XDEL', REQUESTS, unpack(ARGV, 2))
