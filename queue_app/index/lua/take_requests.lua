-- Takes requests to be carried out: one that was taken and not settled, else new ones.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  group    ARGV[2]  consumer
-- ARGV[3]  a request that was not settled for so many ms is taken again    ARGV[4]  how many new ones (1..500)
-- Returns  {times taken, {id, {field, value, ...}}, ...}; {0} when there is nothing
--
-- What was taken before comes alone: the request that kills its consumer is thereby told
-- from those that were taken with it, and they are not counted among its attempts.
--! include keys
local group, consumer, idle, want = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local found = redis.pcall('XPENDING', REQUESTS, group, 'IDLE', idle, '-', '+', 1)
if found.err then
  if not string.find(found.err, 'NOGROUP', 1, true) then return redis.error_reply(found.err) end
  -- From the beginning: what was settled is gone from the stream, so all of it is yet to be done.
  redis.call('XGROUP', 'CREATE', REQUESTS, group, '0', 'MKSTREAM')
  found = {}
end
if found[1] then
  local claimed = redis.call('XCLAIM', REQUESTS, group, consumer, idle, found[1][1])
  if claimed[1] then return { found[1][4] + 1, claimed[1] } end
  -- The entry was deleted by somebody: nothing is left to be done for it.
  redis.call('XACK', REQUESTS, group, found[1][1])
  return { 0 }
end
local new = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', want, 'STREAMS', REQUESTS, '>')
if not new then return { 0 } end
return { 1, unpack(new[1][2]) }
