-- Opens a generation: from now on claims are refused until `finish_generation`.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  number of the generation
-- ARGV[2]  token that must still hold the lock of rebuilds, or '' for whoever
-- Returns  1, or 0 when the lock lapsed and may be another's: a slow rebuild must not replace a later one
--! include keys
if ARGV[2] ~= '' and redis.call('GET', P .. ':lock:rebuild') ~= ARGV[2] then return 0 end
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
-- Limits outlive a rebuild, so that lanes are right from the first push on. Those of another
-- server run may be old, and so may be what their rates have used.
if redis.call('HGET', GENERATION, 'run_id') ~= run_id then
  for _, g in ipairs(redis.call('SMEMBERS', LIMITS)) do redis.call('DEL', limit_key(g)) end
  for _, q in ipairs(redis.call('SMEMBERS', LIMITED)) do redis.call('DEL', queue_key(q), weights_key(q)) end
  redis.call('DEL', LIMITS, LIMITED, SETTINGS)
end
redis.call('DEL', GENERATION)
redis.call('HSET', GENERATION, 'number', ARGV[1], 'run_id', run_id, 'state', 'rebuilding')
return 1
