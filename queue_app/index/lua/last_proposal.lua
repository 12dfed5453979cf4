-- Lists the last tasks proposed to a worker that are still leased. Only the rows know whether they were granted.
--
-- ARGV[1]  worker id
-- Returns  {leased_at_us, id, queue, id, queue, ...}; {} when the worker was never proposed a task
--! include keys
local stamp = redis.call('HGET', GENERATION, 'w:' .. ARGV[1])
if not stamp then return {} end
local reply = { stamp }
for _, q in ipairs(redis.call('SMEMBERS', QUEUES)) do
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', queue_leases_key(q), stamp, stamp)) do
    reply[#reply + 1] = id
    reply[#reply + 1] = q
  end
end
return reply
