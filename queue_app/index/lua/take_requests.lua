-- Takes requests to be carried out: one that was taken and not acknowledged, else new ones.
--
-- ARGV[1]  group    ARGV[2]  consumer
-- ARGV[3]  ms after which an unacknowledged request is taken again    ARGV[4]  maximum number of new ones (1..500)
-- Returns  {times taken, {id, {field, value, ...}}, ...}; {0} when there is nothing
--
-- A request that was taken before comes alone. So the request that kills its consumer is found among those that were taken
-- with it, and their tries are not counted.
--! include keys
local group, consumer, idle, want = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local pending = redis.pcall('XPENDING', REQUESTS, group, 'IDLE', idle, '-', '+', 1)
if pending.err then
  if not string.find(pending.err, 'NOGROUP', 1, true) then return redis.error_reply(pending.err) end
  -- The group starts at the beginning: acknowledged requests are gone from the stream, so all others are left to do.
  redis.call('XGROUP', 'CREATE', REQUESTS, group, '0', 'MKSTREAM')
  pending = {}
end
if pending[1] then
  local claimed = redis.call('XCLAIM', REQUESTS, group, consumer, idle, pending[1][1])
  if claimed[1] then return { pending[1][4] + 1, claimed[1] } end
  -- The entry was deleted: there is nothing left to do for it.
  redis.call('XACK', REQUESTS, group, pending[1][1])
  return { 0 }
end
local new = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', want, 'STREAMS', REQUESTS, '>')
if not new then return { 0 } end
return { 1, unpack(new[1][2]) }
