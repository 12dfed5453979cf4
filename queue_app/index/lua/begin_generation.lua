-- Begins a generation: claims are refused until `open_generation` or `finish_generation`, and no worker registers until the wipe
-- has ended.
--
-- ARGV[1]  number of the generation
-- ARGV[2]  token that must hold the lock of rebuilds, or '' to skip that check
-- ARGV[3]  identity of the database to which the index belongs from now on, or '' for the same as before; the index of
--          another database stays
-- Returns  1, or 0 when the token does not hold the lock (a slow rebuild must not replace a later one), or the index is
--          another database's
--! include keys
if ARGV[2] ~= '' and redis.call('GET', P .. ':lock:rebuild') ~= ARGV[2] then return 0 end
local owner = redis.pcall('HGET', GENERATION, 'database')
if type(owner) ~= 'string' or not is_identity(owner) then owner = '' end
if ARGV[3] ~= '' and owner ~= '' and owner ~= ARGV[3] then return 0 end
if ARGV[3] ~= '' then owner = ARGV[3] end
local run_id = server_run()
-- Limits outlive a rebuild, so that tasks get their right lanes from the first push on. After a restart of the server the
-- limits may be old, and so may the recorded use of their rates. (pcall: the keys may have another type.)
if redis.pcall('HGET', GENERATION, 'run_id') ~= run_id then
  for _, g in ipairs(redis.pcall('SMEMBERS', LIMITS)) do redis.call('DEL', limit_key(g)) end
  for _, q in ipairs(redis.pcall('SMEMBERS', LIMITED)) do redis.call('DEL', queue_key(q), weights_key(q)) end
  redis.call('DEL', LIMITS, LIMITED, SETTINGS)
end
-- The recorded use of rates outlives it too, and so must the clock by which it was recorded.
local stamp, behind = 0, 0
if type(redis.pcall('HLEN', GENERATION)) == 'number' then
  stamp, behind = now_us(), within(redis.call('HGET', GENERATION, 'behind'), FAR_US)
end
redis.call('DEL', GENERATION, PROFILES, LOADING)  -- nothing is placed for profiles whose keys are being wiped
redis.call('HSET', GENERATION, 'number', ARGV[1], 'run_id', run_id, 'state', 'rebuilding', 'wiping', '1',
  'stamp', whole(stamp), 'behind', whole(behind), 'database', owner)
return 1
