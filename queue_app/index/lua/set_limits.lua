-- Copies the limits of one queue, or of everything, from their rows.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  queue, or '' for the limits over all queues
-- ARGV[2]  max_concurrent, or '' for none    ARGV[3]  paused: '1' or '0'
-- Returns  1 when anything changed
--! include keys
--! include limits
--! include heads
--! include wake
local q, cap, paused = ARGV[1], ARGV[2], ARGV[3]
local key = q == '' and SETTINGS or queue_key(q)
local before = redis.call('HMGET', key, 'max_concurrent', 'paused')
if (before[1] or '') == cap and (before[2] or '0') == paused then return 0 end
if cap == '' then
  redis.call('HDEL', key, 'max_concurrent')
else
  redis.call('HSET', key, 'max_concurrent', cap)
end
if paused == '1' then
  redis.call('HSET', key, 'paused', '1')
else
  redis.call('HDEL', key, 'paused')
end
if q ~= '' then refresh_queue_everywhere(q) end
wake_any()
return 1
